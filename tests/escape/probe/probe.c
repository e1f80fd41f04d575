/*
 * The program that is run inside a sandbox to try its walls. It changes nothing outside of it: it opens without writing,
 * calls with invalid arguments, and every loop has a ceiling. In C, because raw system calls there need no other licence.
 */
#include "probe.h"

void say(const char *item, const char *format, ...)
{
    va_list arguments;
    printf("%s\t", item);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

const char *answer(long result)
{
    if (result >= 0)
        return "ok";
    const char *name = strerrorname_np(errno);
    return name ? name : "unknown error";
}

long number(int count, char **arguments, int at, long otherwise)
{
    return at < count ? strtol(arguments[at], NULL, 10) : otherwise;
}

long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void each_mount(void (*visit)(const char *point))
{
    FILE *table = fopen("/proc/self/mountinfo", "re");
    char line[8192], point[4096];
    while (table && fgets(line, sizeof line, table))
        if (sscanf(line, "%*s %*s %*s %*s %4095s", point) == 1)
            visit(point);
    if (table)
        fclose(table);
}

static const struct {
    const char *name;
    command *run;
} COMMANDS[] = {
    {"canary", canary},         {"descriptors", descriptors}, {"writable", writable},
    {"links", links},           {"hardlinks", hardlinks},     {"ids", ids},
    {"kernel-files", kernel_files}, {"signals", signals},     {"peers", peers},
    {"watch", watch},           {"terminal", terminal},       {"hold", hold},
    {"again", again},           {"tree", tree},               {"environment", environment},
    {"sacrifice", sacrifice},   {"refuse", refuse},
    {"calls", calls},           {"forks", forks},             {"threads", threads},
    {"eat", eat},               {"fill", fill},               {"inodes", inodes},
    {"open-files", open_files}, {"kernel-objects", kernel_objects}, {"flood", flood},
    {"spin", spin},             {"network", network},         {"connect", connect_to},
    {"fetch", fetch},           {"visitors", wait_for_visitors}, {"take-ports", take_ports},
};

int main(int count, char **arguments)
{
    if (count < 2) {
        fputs("usage: probe COMMAND [ARGUMENT...]\n", stderr);
        return 2;
    }
    for (size_t i = 0; i < sizeof COMMANDS / sizeof *COMMANDS; i++)
        if (strcmp(arguments[1], COMMANDS[i].name) == 0)
            return COMMANDS[i].run(count - 1, arguments + 1);
    fprintf(stderr, "probe: no command %s\n", arguments[1]);
    return 2;
}
