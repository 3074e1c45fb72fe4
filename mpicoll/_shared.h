/* Messages between processes of one node, through memory that all of them map.
 *
 * Each ordered pair of processes has a queue of ENTRIES entries, one writer and one reader.  An
 * entry is a cache line that says what there is to read (a short message lies in it, a longer one
 * behind it, or in a slot of the writer's, or stays in the writer's memory, which the reader maps if
 * it lies in a window), and an acknowledgement in the reader's cache line.  Use number u (from 1 on) of an entry is published by storing u in
 * `use`, and acknowledged by storing u in the acknowledgement, in any order; the writer waits for
 * that before it uses the entry again.  So every word has one writer, and nothing is counted
 * atomically.  A slot is free when every entry that names it is acknowledged.
 */
#ifndef MPICOLL_SHARED_H
#define MPICOLL_SHARED_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>

#define ENTRIES 16
#define TINY 32 /* bytes that lie in the cache line itself */
#define LINE 64

enum { INSIDE, SLOT, REMOTE, WINDOW };

typedef struct {
    uint64_t use;
    uint32_t tag;
    uint32_t kind;
    uint64_t length;
    uint64_t where; /* number of the slot, address in the writer's memory, or window and offset */
    char tiny[TINY];
} entry_t;

typedef struct {
    char *base;      /* of the segment */
    int ranks, me;   /* processes of the node, this one */
    int slots;       /* of each process */
    uint64_t inside; /* longest message that lies behind its entry */
    uint64_t slot;   /* bytes of one */
} shared_t;

static inline uint64_t shared_stride(const shared_t *s) { return LINE + s->inside; }

/* Acknowledgements first, then entries (both ordered by reader, writer), then slots. */
static inline uint64_t *shared_ack(const shared_t *s, int writer, int reader) {
    return (uint64_t *)(s->base) + ((uint64_t)reader * s->ranks + writer) * ENTRIES;
}

static inline uint64_t shared_entries_at(const shared_t *s) {
    return (uint64_t)s->ranks * s->ranks * ENTRIES * sizeof(uint64_t);
}

static inline entry_t *shared_entry(const shared_t *s, int writer, int reader, uint64_t use) {
    uint64_t pair = (uint64_t)reader * s->ranks + writer;
    return (entry_t *)(s->base + shared_entries_at(s) +
                       (pair * ENTRIES + (use - 1) % ENTRIES) * shared_stride(s));
}

static inline uint64_t shared_slots_at(const shared_t *s) {
    uint64_t pairs = (uint64_t)s->ranks * s->ranks;
    uint64_t end = shared_entries_at(s) + pairs * ENTRIES * shared_stride(s);
    return (end + 4095) / 4096 * 4096;
}

static inline char *shared_slot(const shared_t *s, int writer, uint64_t number) {
    return s->base + shared_slots_at(s) + ((uint64_t)writer * s->slots + number) * s->slot;
}

static inline uint64_t shared_length(const shared_t *s) {
    return shared_slots_at(s) + (uint64_t)s->ranks * s->slots * s->slot;
}

/* Whether a use of an entry from this process to `reader` is acknowledged. */
static inline int shared_acked(const shared_t *s, int reader, uint64_t use) {
    const uint64_t *ack = shared_ack(s, s->me, reader) + (use - 1) % ENTRIES;
    return __atomic_load_n(ack, __ATOMIC_ACQUIRE) >= use;
}

static inline void shared_acknowledge(const shared_t *s, int writer, uint64_t use) {
    uint64_t *ack = shared_ack(s, writer, s->me) + (use - 1) % ENTRIES;
    __atomic_store_n(ack, use, __ATOMIC_RELEASE);
}

/* The entry of this use if it is published, else NULL. */
static inline entry_t *shared_look(const shared_t *s, int writer, uint64_t use) {
    entry_t *entry = shared_entry(s, writer, s->me, use);
    return __atomic_load_n(&entry->use, __ATOMIC_ACQUIRE) == use ? entry : NULL;
}

/* Publish an entry that may be used; content is copied where it lies inside. */
static inline void shared_publish(const shared_t *s, int reader, uint64_t use, uint32_t tag,
                                  uint32_t kind, const void *content, uint64_t length,
                                  uint64_t where) {
    entry_t *entry = shared_entry(s, s->me, reader, use);
    entry->tag = tag;
    entry->kind = kind;
    entry->length = length;
    entry->where = where;
    if (kind == INSIDE) memcpy(length > TINY ? entry->tiny + TINY : entry->tiny, content, length);
    __atomic_store_n(&entry->use, use, __ATOMIC_RELEASE);
}

static inline char *shared_content(const shared_t *s, int writer, const entry_t *entry) {
    if (entry->kind == SLOT) return shared_slot(s, writer, entry->where);
    return (char *)(entry->length > TINY ? entry->tiny + TINY : entry->tiny);
}

/* Read another process's memory.  Returns 0, or -1 with errno. */
static inline int shared_fetch(pid_t process, void *to, uint64_t from, uint64_t length) {
    while (length) {
        struct iovec mine = {to, length}, theirs = {(void *)(uintptr_t)from, length};
        ssize_t got = process_vm_readv(process, &mine, 1, &theirs, 1, 0);
        if (got <= 0) return -1;
        to = (char *)to + got;
        from += (uint64_t)got;
        length -= (uint64_t)got;
    }
    return 0;
}

static inline void shared_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* A lock that is never waited for while anything else is held. */
static inline int shared_try(int *lock) { return !__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE); }
static inline void shared_unlock(int *lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }

#endif
