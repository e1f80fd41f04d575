/* Network: what interfaces there are, what can be reached. */
#include "probe.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

/* What the result of a connection is within two seconds. */
static const char *try_to_connect(int family, int type, const struct sockaddr *address, socklen_t length)
{
    int socket_ = socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket_ < 0)
        return answer(-1);
    const char *result;
    if (connect(socket_, address, length) == 0) {
        result = "ok";
        if (type == SOCK_DGRAM && send(socket_, "probe", 5, MSG_NOSIGNAL) < 0)
            result = answer(-1);
    } else if (errno != EINPROGRESS) {
        result = answer(-1);
    } else {
        struct pollfd waiting = {socket_, POLLOUT, 0};
        int error = ETIMEDOUT;
        socklen_t size = sizeof error;
        if (poll(&waiting, 1, 2000) > 0)
            getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &size);
        errno = error;
        result = error ? answer(-1) : "ok";
    }
    close(socket_);
    return result;
}

static int listens(const char *kind, const char *name, long port, const char **result)
{
    if (strcmp(kind, "abstract") == 0 || strcmp(kind, "path") == 0) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        size_t length = strlen(name), skip = strcmp(kind, "abstract") == 0;
        if (length + skip >= sizeof address.sun_path)
            return 0;
        memcpy(address.sun_path + skip, name, length);
        *result = try_to_connect(AF_UNIX, SOCK_STREAM, (struct sockaddr *)&address,
                                 offsetof(struct sockaddr_un, sun_path) + skip + length);
        return 1;
    }
    int type = strstr(kind, "udp") ? SOCK_DGRAM : SOCK_STREAM;
    struct sockaddr_in old = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 new = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    if (inet_pton(AF_INET, name, &old.sin_addr) == 1)
        *result = try_to_connect(AF_INET, type, (struct sockaddr *)&old, sizeof old);
    else if (inet_pton(AF_INET6, name, &new.sin6_addr) == 1)
        *result = try_to_connect(AF_INET6, type, (struct sockaddr *)&new, sizeof new);
    else
        return 0;
    return 1;
}

/* connect (KIND ADDRESS PORT)...: tcp, udp, abstract or path. */
int connect_to(int count, char **arguments)
{
    for (int i = 1; i + 2 < count; i += 3) {
        const char *result = "not an address";
        long begun = now_ms();
        listens(arguments[i], arguments[i + 1], number(count, arguments, i + 2, 0), &result);
        char item[256];
        snprintf(item, sizeof item, "%s %s %s", arguments[i], arguments[i + 1], arguments[i + 2]);
        say(item, "%s %ld", result, now_ms() - begun);
    }
    return 0;
}

/* network: interfaces, routes and kinds of sockets. */
int network(int count, char **arguments)
{
    (void)count, (void)arguments;
    FILE *table = fopen("/proc/net/dev", "re");
    char line[512], name[64];
    while (table && fgets(line, sizeof line, table))
        if (strchr(line, ':') && sscanf(line, " %63[^:]", name) == 1)
            say("interface", "%s", name);
    if (table)
        fclose(table);
    char by_index[IF_NAMESIZE];
    for (unsigned index = 1; index < 64; index++)
        if (if_indextoname(index, by_index))
            say("interface", "%s", by_index);
    table = fopen("/proc/net/route", "re");
    int routes = -1;
    while (table && fgets(line, sizeof line, table))
        routes++;
    say("routes", "%d", routes);
    if (table)
        fclose(table);

    const struct {
        const char *name;
        int family, type, protocol;
    } kinds[] = {
        {"icmp", AF_INET, SOCK_DGRAM, IPPROTO_ICMP}, {"raw", AF_INET, SOCK_RAW, IPPROTO_ICMP},
        {"raw6", AF_INET6, SOCK_RAW, IPPROTO_ICMPV6}, {"packet", AF_PACKET, SOCK_RAW, 0},
        {"vsock", AF_VSOCK, SOCK_STREAM, 0},         {"alg", AF_ALG, SOCK_SEQPACKET, 0},
        {"bluetooth", 31, SOCK_RAW, 0},              {"xdp", 44, SOCK_RAW, 0},
        {"sctp", AF_INET, SOCK_STREAM, 132},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int made = socket(kinds[i].family, kinds[i].type, kinds[i].protocol);
        say(kinds[i].name, "%s", answer(made));
        if (made >= 0)
            close(made);
    }
    return 0;
}
