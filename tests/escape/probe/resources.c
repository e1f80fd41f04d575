/* Resources: each storm ends at its ceiling even when no limit stops it. */
#include "probe.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

/* No storm goes beyond this, whatever it is asked for. */
#define CEILING 2000
#define ATTEMPTS 100000

static long at_most(long wanted, long ceiling)
{
    return wanted < ceiling ? wanted : ceiling;
}

/* forks ATTEMPTS MILLISECONDS: start as many as one can, hold them, end them. */
int forks(int count, char **arguments)
{
    static pid_t children[CEILING];
    long attempts = at_most(number(count, arguments, 1, 100), ATTEMPTS), made = 0, refused = 0, tried = 0;
    const char *why = "none";
    for (; tried < attempts && made < CEILING; tried++) {
        pid_t child = fork();
        if (child == 0) {
            pause();
            _exit(0);
        }
        if (child > 0)
            children[made++] = child;
        else if (refused++ == 0)
            why = answer(-1);
    }
    say("forks", "%ld", made);
    say("attempts", "%ld", tried);
    say("refused", "%s", why);
    usleep(1000 * number(count, arguments, 2, 0));
    for (long i = 0; i < made; i++)
        kill(children[i], SIGKILL);
    while (wait(NULL) > 0)
        ;
    return 0;
}

static void *sleep_for_ever(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}

/* threads ATTEMPTS */
int threads(int count, char **arguments)
{
    long attempts = at_most(number(count, arguments, 1, 100), ATTEMPTS), made = 0, tried = 0;
    const char *why = "none";
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 * 1024);
    for (; tried < attempts && made < CEILING; tried++) {
        pthread_t thread;
        int error = pthread_create(&thread, &small, sleep_for_ever, NULL);
        if (error == 0) {
            made++;
            continue;
        }
        errno = error;
        why = answer(-1);
    }
    say("threads", "%ld", made);
    say("attempts", "%ld", tried);
    say("refused", "%s", why);
    fflush(stdout);
    _exit(0);
}

static void touch(long mebibytes)
{
    for (long i = 0; i < mebibytes; i++) {
        char *block = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) {
            say("mmap", "%s", answer(-1));
            return;
        }
        memset(block, 1, 1 << 20);
    }
}

/* eat MEBIBYTES PROCESSES: touch that much, spread over that many. */
int eat(int count, char **arguments)
{
    long mebibytes = at_most(number(count, arguments, 1, 64), 1024);
    long processes = at_most(number(count, arguments, 2, 1), 64);
    if (processes <= 1) {
        touch(mebibytes);
        say("touched", "%ld", mebibytes);
        return 0;
    }
    int together[2];
    if (pipe(together) < 0)
        return 1;
    for (long i = 0; i < processes; i++)
        if (fork() == 0) {
            char byte;
            close(together[1]);
            touch(mebibytes / processes);
            if (read(together[0], &byte, 1) < 0)
                _exit(1);
            _exit(0);
        }
    sleep(1);
    close(together[1]);
    long killed = 0, status;
    while (wait((int *)&status) > 0)
        killed += WIFSIGNALED((int)status);
    say("killed", "%ld", killed);
    return killed ? 3 : 0;
}

static long mebibytes_left;

static void fill_place(const char *place)
{
    char path[PATH_MAX];
    static char block[1 << 20];
    memset(block, 7, sizeof block);
    snprintf(path, sizeof path, "%s/.probe-fill", place);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0)
        return;
    long long bytes = 0;
    const char *why = "ceiling";
    while (mebibytes_left > 0) {
        ssize_t written = write(file, block, sizeof block);
        if (written < 0) {
            why = answer(-1);
            break;
        }
        bytes += written;
        if (written == sizeof block)
            mebibytes_left--;
    }
    close(file);
    if (bytes > 0)
        say("filled", "%s %lld %s", place, bytes, why);
}

static void below(const char *place, int depth)
{
    if (strncmp(place, "/proc", 5) == 0 || strncmp(place, "/sys", 4) == 0)
        return;
    if (access(place, W_OK) == 0)
        fill_place(place);
    DIR *directory = depth > 0 ? opendir(place) : NULL;
    struct dirent *entry;
    while (directory && (entry = readdir(directory)))
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.') {
            char path[PATH_MAX];
            snprintf(path, sizeof path, "%s/%s", strcmp(place, "/") ? place : "", entry->d_name);
            below(path, depth - 1);
        }
    if (directory)
        closedir(directory);
}

static void below_mount(const char *place)
{
    below(place, 1);
}

/* fill MEBIBYTES: in every place that takes a file, until an error; that much in all at most. Files stay. */
int fill(int count, char **arguments)
{
    mebibytes_left = at_most(number(count, arguments, 1, 64), 1024);
    below("/", 2);
    each_mount(below_mount);
    say("left", "%ld", mebibytes_left);
    return 0;
}

/* inodes COUNT: empty files in the working directory until an error. */
int inodes(int count, char **arguments)
{
    long most = at_most(number(count, arguments, 1, 1000), 20000), made = 0;
    const char *why = "ceiling";
    mkdir("inodes", 0700);
    for (; made < most; made++) {
        char name[64];
        snprintf(name, sizeof name, "inodes/%ld", made);
        int file = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (file < 0) {
            why = answer(-1);
            break;
        }
        close(file);
    }
    say("made", "%ld", made);
    say("refused", "%s", why);
    return 0;
}

/* open-files COUNT */
int open_files(int count, char **arguments)
{
    long most = at_most(number(count, arguments, 1, 1000), 20000), made = 0;
    const char *why = "ceiling";
    for (; made < most; made++)
        if (open("/dev/null", O_RDONLY) < 0) {
            why = answer(-1);
            break;
        }
    say("opened", "%ld", made + 3);
    say("refused", "%s", why);
    return 0;
}

/* kernel-objects COUNT MILLISECONDS: things that are counted per user by the kernel, held for a while. */
int kernel_objects(int count, char **arguments)
{
    long most = at_most(number(count, arguments, 1, 200), CEILING), watches = 0, others = 0;
    const char *why = "none";
    for (long i = 0; i < most; i++) {
        int made = inotify_init1(IN_CLOEXEC);
        if (made < 0) {
            why = answer(-1);
            break;
        }
        watches++;
    }
    for (int i = 0; i < 16; i++)
        others += (epoll_create1(EPOLL_CLOEXEC) >= 0) + (eventfd(0, EFD_CLOEXEC) >= 0) +
                  (timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC) >= 0);
    say("inotify", "%ld", watches);
    say("refused", "%s", why);
    say("others", "%ld", others);
    usleep(1000 * number(count, arguments, 2, 0));
    return 0;
}

/* flood MEBIBYTES KIND: to both outputs; exits with 7 so that the host can see that the status was kept. */
int flood(int count, char **arguments)
{
    static char block[1 << 20];
    long mebibytes = at_most(number(count, arguments, 1, 16), 16384);
    const char *kind = count > 2 ? arguments[2] : "plain";
    unsigned char byte = strcmp(kind, "control") == 0 ? 1 : strcmp(kind, "invalid") == 0 ? 0xff : 'x';
    memset(block, byte, sizeof block);
    if (strcmp(kind, "lines") == 0)
        block[sizeof block - 1] = '\n';
    for (long i = 0; i < mebibytes; i++) {
        int output = i % 2 ? 2 : 1;
        for (size_t sent = 0; sent < sizeof block;) {
            ssize_t written = write(output, block + sent, sizeof block - sent);
            if (written < 0)
                return 8;
            sent += written;
        }
    }
    return 7;
}

static long spin_until;

static void *burn(void *nothing)
{
    volatile unsigned long number = 1;
    while (now_ms() < spin_until)
        for (int i = 0; i < 100000; i++)
            number = number * 2862933555777941757UL + 3037000493UL;
    return nothing;
}

/* spin THREADS MILLISECONDS: processor time of this process when it is over. */
int spin(int count, char **arguments)
{
    long wanted = at_most(number(count, arguments, 1, 2), 16);
    long milliseconds = at_most(number(count, arguments, 2, 1000), 20000);
    pthread_t started[16];
    long begun = now_ms();
    spin_until = begun + milliseconds;
    for (long i = 0; i < wanted; i++)
        pthread_create(&started[i], NULL, burn, NULL);
    for (long i = 0; i < wanted; i++)
        pthread_join(started[i], NULL);
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    say("cpu", "%ld", used.tv_sec * 1000 + used.tv_nsec / 1000000);
    say("wall", "%ld", now_ms() - begun);
    return 0;
}
