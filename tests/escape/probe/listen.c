/* Listens inside a sandbox for those who should not get in, and where others listen. */
#include "probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

static int bound(int type, const char *address, int port, int shared)
{
    int on = 1, off = 0, made;
    struct sockaddr_in old = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 new = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    int is_old = inet_pton(AF_INET, address, &old.sin_addr) == 1;
    if (!is_old && inet_pton(AF_INET6, address, &new.sin6_addr) != 1)
        return -1;
    made = socket(is_old ? AF_INET : AF_INET6, type | SOCK_CLOEXEC, 0);
    if (made < 0)
        return -1;
    if (shared) {
        setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        setsockopt(made, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    }
    if (!is_old)
        setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    int failed = is_old ? bind(made, (struct sockaddr *)&old, sizeof old) : bind(made, (struct sockaddr *)&new, sizeof new);
    if (!failed && type == SOCK_STREAM)
        failed = listen(made, 16);
    if (failed) {
        int error = errno;
        close(made);
        errno = error;
        return -1;
    }
    return made;
}

/* visitors PORT: listens everywhere until stdin is closed, and says who came. */
int wait_for_visitors(int count, char **arguments)
{
    int port = number(count, arguments, 1, 8000);
    int streams = bound(SOCK_STREAM, "::", port, 0), datagrams = bound(SOCK_DGRAM, "::", port, 0);
    say("listening", "%s", answer(streams < 0 ? streams : datagrams));
    struct pollfd waiting[] = {{0, POLLIN, 0}, {streams, POLLIN, 0}, {datagrams, POLLIN, 0}};
    char bytes[64];
    int visitors = 0;
    while (poll(waiting, 3, 60000) > 0) {
        if (waiting[0].revents && read(0, bytes, sizeof bytes) <= 0)
            break;
        if (waiting[1].revents) {
            int visitor = accept(streams, NULL, NULL);
            visitors++;
            close(visitor);
        }
        if (waiting[2].revents && recv(datagrams, bytes, sizeof bytes, 0) >= 0)
            visitors++;
    }
    say("visitors", "%d", visitors);
    return 0;
}

/* take-ports: tries to sit where the gateway's sockets are, beside them if need be. */
int take_ports(int count, char **arguments)
{
    (void)count, (void)arguments;
    const struct {
        int type, port;
        const char *address;
    } places[] = {
        {SOCK_STREAM, 3128, "::"}, {SOCK_STREAM, 3128, "127.0.0.1"}, {SOCK_STREAM, 3128, "0.0.0.0"},
        {SOCK_STREAM, 3128, "::1"}, {SOCK_DGRAM, 53, "127.0.0.1"}, {SOCK_DGRAM, 53, "::"}, {SOCK_DGRAM, 53, "0.0.0.0"},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char item[80];
        snprintf(item, sizeof item, "%s port %d", places[i].address, places[i].port);
        int taken = bound(places[i].type, places[i].address, places[i].port, 1);
        say(item, "%s", answer(taken));
        if (taken >= 0)
            close(taken);
    }
    return 0;
}
