/* Loaded into the daemon with LD_PRELOAD: fails, or records, what it does to the files of its store.
 *
 * FAULTS_CONTROL names a file whose first byte says what fails: 'w' writes (ENOSPC), 's' syncs (EIO), 'r' reads (EIO).
 * FAULTS_RECORD names a file that gets every write, cut and sync, in their order:
 *   kind (1 byte: W, T, S), file (1 byte: d the store, l its log), offset and length (8 bytes each), content of a write.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static char kind_of(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  if (size >= 12 && !strcmp(path + size - 12, "store.sqlite")) return 'd';
  if (size >= 16 && !strcmp(path + size - 16, "store.sqlite-wal")) return 'l';
  return 0;
}

static int fails(char what) {
  const char *name = getenv("FAULTS_CONTROL");
  char now = 0;
  int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
  if (fd >= 0) {
    if (read(fd, &now, 1) != 1) now = 0;
    close(fd);
  }
  return now == what;
}

static void note(char what, char file, int64_t offset, int64_t size, const void *content) {
  static int record = -2;
  pthread_mutex_lock(&lock);
  if (record == -2) {
    const char *name = getenv("FAULTS_RECORD");
    record = name ? open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
  }
  if (record >= 0) {
    char head[18] = {what, file};
    memcpy(head + 2, &offset, 8);
    memcpy(head + 10, &size, 8);
    if (write(record, head, 18) != 18 || (content && write(record, content, size) != size)) abort();
  }
  pthread_mutex_unlock(&lock);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
  REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
  char file = kind_of(fd);
  if (file && fails('w')) { errno = ENOSPC; return -1; }
  ssize_t done = real(fd, data, size, offset);
  if (file && done > 0) note('W', file, offset, done, data);
  return done;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return pwrite64(fd, data, size, offset); }

ssize_t pread64(int fd, void *data, size_t size, off64_t offset) {
  REAL(ssize_t, "pread64", int, void *, size_t, off64_t);
  /* The first page is left: a daemon without it has no store at all. */
  if (offset >= 4096 && kind_of(fd) == 'd' && fails('r')) { errno = EIO; return -1; }
  return real(fd, data, size, offset);
}
ssize_t pread(int fd, void *data, size_t size, off_t offset) { return pread64(fd, data, size, offset); }

int ftruncate64(int fd, off64_t size) {
  REAL(int, "ftruncate64", int, off64_t);
  int done = real(fd, size);
  char file = kind_of(fd);
  if (file && !done) note('T', file, size, 0, NULL);
  return done;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

static int synced(int fd, const char *name) {
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
  char file = kind_of(fd);
  if (file && fails('s')) { errno = EIO; return -1; }
  int done = real(fd);
  if (file && !done) note('S', file, 0, 0, NULL);
  return done;
}
int fsync(int fd) { return synced(fd, "fsync"); }
int fdatasync(int fd) { return synced(fd, "fdatasync"); }
