/* What the start of a pod costs at the least: these directories, writes, syncs and the clone + exec, by nothing but system calls.
 *
 *   bare_start stamp FILE            be the container's process: tell the time in a file, and stay
 *   bare_start drop FROM TO FILE     rename a manifest into place, wait for the file; print nanoseconds until the process ran
 *   bare_start replay PLAN FILE      do the steps of a plan, wait for the file; print nanoseconds, and those of processor time
 *
 * Steps of a plan, one per line: `d DIRECTORY`, `w FILE TEXT`, `s FILE BYTES` (a file that survives a loss of power), `x CGROUP`.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <libgen.h>
#include <linux/sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void check(long result, const char *what)
{
    if (result < 0) {
        perror(what);
        exit(1);
    }
}

static long long nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void write_file(const char *path, int flags, const char *text, size_t length)
{
    int file = open(path, O_WRONLY | O_CLOEXEC | flags, 0600);
    check(file, path);
    check(write(file, text, length), path);
    close(file);
}

static void stamp(const char *path)
{
    char text[32], temporary[4096];
    int length = snprintf(text, sizeof text, "%lld", nanoseconds());
    snprintf(temporary, sizeof temporary, "%s.new", path);
    write_file(temporary, O_CREAT | O_TRUNC, text, length);
    check(rename(temporary, path), path);
    for (;;)
        pause();
}

static long long wait_for_stamp(int watch, const char *path)
{
    char events[4096], text[32] = "";
    int file;
    while ((file = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        check(read(watch, events, sizeof events), "inotify");
    check(read(file, text, sizeof text - 1), path);
    close(file);
    return atoll(text);
}

static void write_durably(const char *path, size_t size)
{
    char temporary[4096], *content = calloc(1, size + 1), *copy = strdup(path);
    snprintf(temporary, sizeof temporary, "%s.new", path);
    int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    check(file, temporary);
    check(write(file, content, size), temporary);
    check(fsync(file), temporary);
    close(file);
    check(rename(temporary, path), path);
    file = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(fsync(file), path);
    close(file);
}

static void start(const char *program, const char *cgroup, const char *path)
{
    int place = open(cgroup, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(place, cgroup);
    struct clone_args how = {.flags = CLONE_INTO_CGROUP, .exit_signal = 17, .cgroup = place};
    long pid = syscall(SYS_clone3, &how, sizeof how);
    check(pid, "clone3");
    if (pid == 0) {
        execl(program, program, "stamp", path, NULL);
        _exit(1);
    }
    close(place);
}

static void replay(const char *program, const char *plan, const char *path)
{
    char line[2048];
    FILE *steps = fopen(plan, "r");
    if (steps == NULL)
        check(-1, plan);
    while (fgets(line, sizeof line, steps)) {
        line[strcspn(line, "\n")] = 0;
        char *where = line + 2, *what = strchr(where, ' ');
        if (what != NULL)
            *what++ = 0;
        switch (line[0]) {
        case 'd':
            check(mkdir(where, 0755), where);
            break;
        case 'w':
            write_file(where, 0, what, strlen(what));
            break;
        case 's':
            write_durably(where, atoi(what));
            break;
        case 'x':
            start(program, where, path);
        }
    }
    fclose(steps);
}

int main(int count, char **arguments)
{
    if (count == 3 && strcmp(arguments[1], "stamp") == 0)
        stamp(arguments[2]);
    if (count < 4)
        return 2;
    const char *path = arguments[count - 1];
    char *copy = strdup(path);
    unlink(path);
    int watch = inotify_init1(IN_CLOEXEC);
    check(inotify_add_watch(watch, dirname(copy), IN_MOVED_TO), path);
    long long began = nanoseconds();
    if (strcmp(arguments[1], "drop") == 0)
        check(rename(arguments[2], arguments[3]), arguments[3]);
    else
        replay(arguments[0], arguments[2], path);
    long long ran = wait_for_stamp(watch, path) - began;
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    long long used = (own.ru_utime.tv_sec + own.ru_stime.tv_sec) * 1000000LL + own.ru_utime.tv_usec + own.ru_stime.tv_usec;
    printf("%lld %lld\n", ran, used * 1000);
    return 0;
}
