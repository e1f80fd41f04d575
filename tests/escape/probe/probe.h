/* What the families of the probe share. */
#pragma once

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* One finding: an item, a tab, what was found. The host judges. */
void say(const char *item, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "ok" for a call that succeeded, else the name of its error. */
const char *answer(long result);

/* The number in an argument, or `otherwise` when it is not given. */
long number(int count, char **arguments, int at, long otherwise);

/* Milliseconds of a clock that never goes back. */
long now_ms(void);

/* Calls `visit` for every mount point that this process sees. */
void each_mount(void (*visit)(const char *point));

typedef int command(int count, char **arguments);

command canary, descriptors, writable, links, hardlinks, ids, kernel_files;
command signals, peers, watch, terminal, hold, again, sacrifice, tree, environment;
command calls, refuse;
command forks, threads, eat, fill, inodes, open_files, kernel_objects, flood, spin;
command network, connect_to, fetch, wait_for_visitors, take_ports;
