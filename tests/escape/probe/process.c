/* Processes: who answers, whose memory and descriptors can be had, what a terminal allows. */
#include "probe.h"

#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

/* signals MAX: which ids up to the maximum answer signal 0. */
int signals(int count, char **arguments)
{
    long most = number(count, arguments, 1, 4194304), own = 0;
    for (long pid = 1; pid <= most; pid++)
        if (kill(pid, 0) == 0 || errno == EPERM) {
            char path[64], name[64] = "?";
            snprintf(path, sizeof path, "/proc/%ld/comm", pid);
            FILE *file = fopen(path, "re");
            if (file && fgets(name, sizeof name, file))
                name[strcspn(name, "\n")] = 0;
            if (file)
                fclose(file);
            if (own++ < 64)
                say("answers", "%ld %s", pid, name);
        }
    say("answering", "%ld", own);
    return 0;
}

/* An id's memory and descriptors, in each way that the kernel offers. Nothing is written and nobody is stopped. */
static void try_process(const char *whom, pid_t pid)
{
    char item[128], path[64];
    snprintf(item, sizeof item, "%s ptrace", whom);
    long attached = ptrace(PTRACE_SEIZE, pid, 0, 0);
    say(item, "%s", answer(attached));

    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)0x400000, 1};
    snprintf(item, sizeof item, "%s process_vm_readv", whom);
    long bytes = process_vm_readv(pid, &here, 1, &there, 1, 0);
    /* A bad address is an answer about the memory, so access was given. */
    say(item, "%s", bytes < 0 && errno == EFAULT ? "ok" : answer(bytes));

    const char *files[] = {"mem", "maps", "environ", "fd", "cwd", "root", "exe", "map_files", "ns/mnt"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, files[i]);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        snprintf(item, sizeof item, "%s %s", whom, files[i]);
        say(item, "%s", answer(file));
        if (file >= 0)
            close(file);
    }
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    int program = open(path, O_WRONLY | O_CLOEXEC);
    snprintf(item, sizeof item, "%s exe for writing", whom);
    say(item, "%s", answer(program));
    if (program >= 0)
        close(program);

    int handle = syscall(SYS_pidfd_open, pid, 0);
    snprintf(item, sizeof item, "%s pidfd_getfd", whom);
    if (handle < 0) {
        say(item, "%s", answer(-1));
        return;
    }
    int stolen = syscall(SYS_pidfd_getfd, handle, 0, 0);
    say(item, "%s", answer(stolen));
    if (stolen >= 0)
        close(stolen);
    close(handle);
}

/* peers: process 1, and a child of our own as the measure of what the tries would show. */
int peers(int count, char **arguments)
{
    (void)count, (void)arguments;
    try_process("init", 1);
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    try_process("child", child);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return 0;
}

/* Whether a process already is the program that this is: then it is a peer, and its memory is its own affair. */
static int is_peer(pid_t pid, int program)
{
    struct stat own, other;
    char path[64];
    if (stat("/proc/self/exe", &own) < 0)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    if (program >= 0 ? fstat(program, &other) < 0 : stat(path, &other) < 0)
        return 0;
    return own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}

static int steal_descriptor(pid_t pid)
{
    int handle = syscall(SYS_pidfd_open, pid, 0);
    int stolen = handle < 0 ? -1 : syscall(SYS_pidfd_getfd, handle, 3, 0);
    if (handle >= 0)
        close(handle);
    return stolen;
}

/* watch MILLISECONDS: while others are started, catch them before they became the program that was asked for. */
int watch(int count, char **arguments)
{
    long until = now_ms() + number(count, arguments, 1, 1000), tries = 0, caught = 0, seen = 0;
    while (now_ms() < until && tries < 1000000) {
        DIR *directory = opendir("/proc");
        struct dirent *entry;
        while (directory && (entry = readdir(directory))) {
            char path[64];
            pid_t pid = atoi(entry->d_name);
            if (pid < 1 || pid == getpid())
                continue;
            tries++;
            snprintf(path, sizeof path, "/proc/%d/mem", pid);
            int memory = open(path, O_RDONLY | O_CLOEXEC);
            int stolen = steal_descriptor(pid);
            snprintf(path, sizeof path, "/proc/%d/exe", pid);
            int program = open(path, O_RDONLY | O_CLOEXEC);
            /* Without a program it has ended meanwhile, whatever it was before. */
            int ended = program < 0 && errno != EACCES && errno != EPERM;
            /* Asked last: a helper that becomes a peer between the tries must not be taken for a helper. */
            int helper = !ended && !is_peer(pid, program);
            seen += helper && pid != 1;
            if (helper && (memory >= 0 || program >= 0 || stolen >= 0) && kill(pid, 0) == 0 && caught++ < 16)
                say("caught", "%d mem=%d exe=%d fd=%d", pid, memory >= 0, program >= 0, stolen >= 0);
            for (int i = 0; i < 3; i++)
                if ((int[]){memory, program, stolen}[i] >= 0)
                    close((int[]){memory, program, stolen}[i]);
        }
        if (directory)
            closedir(directory);
    }
    say("tries", "%ld", tries);
    say("helpers seen", "%ld", seen);
    say("caught in all", "%ld", caught);
    return 0;
}

/* terminal: injection and console requests, with a byte that harms nobody. */
int terminal(int count, char **arguments)
{
    (void)count, (void)arguments;
    char space = ' ', shift_state = 6;
    int number;
    say("is a terminal", "%d", isatty(0));
    say("TIOCSTI", "%s", answer(ioctl(0, TIOCSTI, &space)));
    say("TIOCLINUX", "%s", answer(ioctl(0, TIOCLINUX, &shift_state)));
    say("TIOCCONS", "%s", answer(ioctl(0, TIOCCONS, 0)));
    say("TIOCGPTN", "%s", answer(ioctl(0, TIOCGPTN, &number)));
    say("name", "%s", ttyname(0) ? ttyname(0) : "?");
    struct stat own, console;
    if (fstat(0, &own) == 0)
        say("device", "%lu:%lu", (unsigned long)own.st_dev, (unsigned long)own.st_rdev);
    say("console", "%s", answer(stat("/dev/console", &console)));
    say("console open", "%s", answer(open("/dev/console", O_RDWR | O_NOCTTY | O_CLOEXEC)));
    return 0;
}

static void *sleep_for_ever(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}

/* hold MARK FORKS THREADS: be looked at until standard input ends. */
int hold(int count, char **arguments)
{
    long wanted_forks = number(count, arguments, 2, 0), wanted_threads = number(count, arguments, 3, 0);
    pid_t self = getpid();
    for (long i = 0; i < wanted_forks && i < 16; i++)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            /* The parent may have ended before that was said. */
            if (getppid() != self)
                _exit(0);
            sleep_for_ever(NULL);
        }
    for (long i = 0; i < wanted_threads && i < 16; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, sleep_for_ever, NULL);
    }
    say("ready", "%d", getpid());
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    signal(SIGTERM, SIG_IGN);
    return 0;
}

/* again TIMES COMMAND...: become itself that often, then the command. */
int again(int count, char **arguments)
{
    long times = number(count, arguments, 1, 0);
    char left[32];
    if (count < 3)
        return 2;
    if (times <= 0) {
        char *next[64] = {"/proc/self/exe"};
        for (int i = 2; i < count && i < 62; i++)
            next[i - 1] = arguments[i];
        execv("/proc/self/exe", next);
        return 127;
    }
    snprintf(left, sizeof left, "%ld", times - 1);
    char *next[64] = {"probe", "again", left};
    for (int i = 2; i < count && i < 60; i++)
        next[i + 1] = arguments[i];
    if (times % 2) {
        pid_t child = fork();
        if (child > 0) {
            int status;
            waitpid(child, &status, 0);
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        }
    }
    execv("/proc/self/exe", next);
    return 127;
}

/* sacrifice COMMAND...: ask to be killed first when memory runs out, which nobody needs a right for, then the command. */
int sacrifice(int count, char **arguments)
{
    int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (file >= 0) {
        if (write(file, "777", 3) < 0)
            return 1;
        close(file);
    }
    char *next[64] = {"/proc/self/exe"};
    for (int i = 1; i < count && i < 62; i++)
        next[i] = arguments[i];
    execv("/proc/self/exe", next);
    return 127;
}

/* tree KIND MARK: programs that are hard to end. MARK is only there to be found by. */
int tree(int count, char **arguments)
{
    const char *kind = count > 1 ? arguments[1] : "sleep";
    say("started", "%s", kind);
    if (strcmp(kind, "ignore") == 0) {
        for (int i = 1; i < 32; i++)
            signal(i, SIG_IGN);
    } else if (strcmp(kind, "stop") == 0) {
        if (fork() == 0)
            raise(SIGSTOP);
        raise(SIGSTOP);
    } else if (strcmp(kind, "daemon") == 0) {
        if (fork() == 0) {
            setsid();
            if (fork() > 0)
                _exit(0);
            for (int i = 0; i < 3; i++)
                close(i);
        }
    } else if (strcmp(kind, "session") == 0) {
        for (int i = 0; i < 4; i++)
            if (fork() == 0)
                setsid();
    } else if (strcmp(kind, "spawn") == 0) {
        /* Each generation starts the next and ends, so that no list of ids is ever complete. At most 20,000. */
        for (int generation = 0; generation < 20000; generation++) {
            pid_t child = fork();
            if (child > 0 && generation > 0)
                _exit(0);
            if (child > 0)
                break;
            struct timespec pause_for = {0, 200000};
            nanosleep(&pause_for, NULL);
        }
    }
    for (int i = 0; i < 600; i++)
        usleep(100000);
    return 0;
}

/* environment: of everything that can be seen. */
int environment(int count, char **arguments)
{
    (void)count, (void)arguments;
    DIR *directory = opendir("/proc");
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        char path[300], bytes[65536];
        if (atoi(entry->d_name) < 1)
            continue;
        snprintf(path, sizeof path, "/proc/%s/environ", entry->d_name);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) {
            say(entry->d_name, "%s", answer(-1));
            continue;
        }
        ssize_t length = read(file, bytes, sizeof bytes - 1);
        close(file);
        for (ssize_t i = 0; i < length; i++)
            if (bytes[i] == 0 || bytes[i] == '\n')
                bytes[i] = ' ';
        bytes[length > 0 ? length : 0] = 0;
        say(entry->d_name, "%s", bytes);
    }
    return 0;
}
