/* A client that knows nothing of proxies: it asks the resolver, connects, sends, and tells what came back. */
#include "probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

enum { A = 1, AAAA = 28, PATIENCE_MS = 4000 };

struct target {
    int family;
    unsigned char address[16];
    struct sockaddr_in6 socket;
    socklen_t length;
};

/* One question for one name; the answer stays in `packet`. */
static int question(const char *name, int type, unsigned char *packet)
{
    unsigned char *at = packet + 12;
    memset(packet, 0, 12);
    packet[0] = type, packet[1] = 7, packet[2] = 1, packet[5] = 1;
    while (*name) {
        size_t length = strcspn(name, ".");
        if (length == 0 || length > 63 || at - packet + length > 400)
            return -1;
        *at++ = length;
        memcpy(at, name, length);
        at += length;
        name += length + (name[length] == '.');
    }
    *at++ = 0, *at++ = 0, *at++ = type, *at++ = 0, *at++ = 1;
    return at - packet;
}

static int skip_name(const unsigned char *packet, int at, int length)
{
    while (at < length && packet[at] && packet[at] < 192)
        at += packet[at] + 1;
    return at < length && packet[at] ? at + 2 : at + 1;
}

/* Asks 127.0.0.1 as a program without settings would. Says what came back. */
static int resolve(const char *name, int type, struct target *found, int most)
{
    unsigned char packet[1500];
    int length = question(name, type, packet), count = 0;
    struct sockaddr_in resolver = {.sin_family = AF_INET, .sin_port = htons(53), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int socket_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    char item[300];
    snprintf(item, sizeof item, "%s %s", type == A ? "A" : "AAAA", name);
    if (length < 0 || connect(socket_, (struct sockaddr *)&resolver, sizeof resolver) || send(socket_, packet, length, 0) < 0) {
        say(item, "%s", length < 0 ? "not a name" : answer(-1));
        close(socket_);
        return 0;
    }
    struct pollfd waiting = {socket_, POLLIN, 0};
    int got = poll(&waiting, 1, PATIENCE_MS) > 0 ? (int)recv(socket_, packet, sizeof packet, 0) : -1;
    close(socket_);
    if (got < 12) {
        say(item, "no answer");
        return 0;
    }
    int answers = packet[6] << 8 | packet[7];
    int at = skip_name(packet, 12, got) + 4;
    for (int i = 0; i < answers && at + 12 < got; i++) {
        at = skip_name(packet, at, got);
        int kind = packet[at] << 8 | packet[at + 1], size = packet[at + 8] << 8 | packet[at + 9];
        at += 10;
        if (at + size <= got && kind == type && count < most) {
            found[count].family = type == A ? AF_INET : AF_INET6;
            memcpy(found[count++].address, packet + at, type == A ? 4 : 16);
        }
        at += size;
    }
    say(item, "code %d, %d addresses", packet[3] & 15, count);
    return count;
}

static void complete(struct target *target, int port)
{
    if (target->family == AF_INET) {
        struct sockaddr_in *socket_ = (struct sockaddr_in *)&target->socket;
        *socket_ = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
        memcpy(&socket_->sin_addr, target->address, 4);
        target->length = sizeof *socket_;
    } else {
        target->socket = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
        memcpy(&target->socket.sin6_addr, target->address, 16);
        target->length = sizeof target->socket;
    }
}

/* Sends `text` and says the first of what comes back, on one line. */
static void talk(const char *item, const struct target *target, const char *text, size_t size)
{
    int socket_ = socket(target->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int connected = connect(socket_, (const struct sockaddr *)&target->socket, target->length);
    struct pollfd waiting = {socket_, POLLOUT, 0};
    if (connected && errno == EINPROGRESS && poll(&waiting, 1, PATIENCE_MS) > 0) {
        int error = 0;
        socklen_t length = sizeof error;
        getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &length);
        errno = error;
        connected = error ? -1 : 0;
    }
    if (connected) {
        say(item, "%s", answer(-1));
        close(socket_);
        return;
    }
    if (size && send(socket_, text, size, MSG_NOSIGNAL) < 0) {
        say(item, "sent nothing: %s", answer(-1));
        close(socket_);
        return;
    }
    char reply[1024];
    size_t got = 0;
    waiting.events = POLLIN;
    const char *end = "";
    while (got < sizeof reply - 1 && poll(&waiting, 1, got ? 100 : PATIENCE_MS) > 0) {
        ssize_t more = recv(socket_, reply + got, sizeof reply - 1 - got, 0);
        if (more <= 0) {
            end = more < 0 ? answer(-1) : "";
            break;
        }
        got += more;
    }
    for (size_t i = 0; i < got; i++)
        if (reply[i] < ' ')
            reply[i] = ' ';
    reply[got] = 0;
    say(item, "connected: %s%s", reply, end);
    close(socket_);
}

/* fetch (TARGET PORT)...: an address, or a name that is resolved first. What is sent comes from stdin. */
int fetch(int count, char **arguments)
{
    static char text[65536];
    size_t size = fread(text, 1, sizeof text, stdin);
    for (int i = 1; i + 1 < count; i += 2) {
        struct target targets[16];
        memset(targets, 0, sizeof targets);
        int found = 1;
        if (inet_pton(AF_INET, arguments[i], targets[0].address) == 1)
            targets[0].family = AF_INET;
        else if (inet_pton(AF_INET6, arguments[i], targets[0].address) == 1)
            targets[0].family = AF_INET6;
        else {
            found = resolve(arguments[i], A, targets, 8);
            found += resolve(arguments[i], AAAA, targets + found, 8);
        }
        for (int j = 0; j < found; j++) {
            char shown[INET6_ADDRSTRLEN], item[512];
            inet_ntop(targets[j].family, targets[j].address, shown, sizeof shown);
            snprintf(item, sizeof item, "%s %s %s", arguments[i], shown, arguments[i + 1]);
            complete(&targets[j], number(count, arguments, i + 1, 80));
            talk(item, &targets[j], text, size);
        }
    }
    return 0;
}
