/* Messages between processes of one node, through memory that all of them map.
 *
 * Each ordered pair of processes has a queue of ENTRIES entries, one writer and one reader.  An
 * entry is a cache line that says what there is to read (a short message lies in it, a longer one
 * behind it, or in a slot of the writer's, or stays in the writer's memory, which the reader maps if
 * it lies in a window), and an acknowledgement in the reader's cache line.  Use number u (from 1 on)
 * of an entry is published by storing u in `use`, and acknowledged by storing u in the
 * acknowledgement, in any order; the writer waits for that before it uses the entry again.  So every
 * word but a request has one writer, and nothing is counted atomically.  A slot is free when every
 * entry that names it is acknowledged.  A writer without room stores 1 in its request to the reader,
 * who stores 0 when it has seen that.
 *
 * The exception is a long message that stays in the writer's memory.  A writer that waits for its
 * reader has nothing better to do than to copy, too: the reader says in the entry where the message
 * goes, and both take pieces of it from one counter until there is none left.  The reader
 * acknowledges when the pieces that the writer has taken are there as well.
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
#include <time.h>

#include "_copy.h"

#define ENTRIES 16
#define TINY 32 /* bytes that lie in the cache line itself */
#define LINE 64
#define SHORTEST_PIECE (128 << 10)
#define BETWEEN (64 << 10) /* bytes of a copy by two steps: they stay in a cache near the core */

enum { INSIDE, SLOT, REMOTE, WINDOW };

/* A long message that both sides copy; words that begin as zero. */
typedef struct {
    uint64_t to;     /* where it goes in the reader's memory; the reader's word */
    uint64_t taken;  /* bytes of the pieces that either has taken; counted atomically */
    uint64_t helped; /* bytes that the writer has copied, or has failed to; the writer's word */
    uint64_t failed; /* 1 + offset of the piece that it could not copy; the writer's word */
} shared_copy_t;

typedef struct {
    uint64_t use;
    uint32_t tag;
    uint32_t kind;
    uint64_t length;
    uint64_t where; /* number of the slot, address in the writer's memory, or window and offset */
    union {
        char tiny[TINY];
        shared_copy_t copy;
    };
} entry_t;

typedef struct {
    char *base;      /* of the segment */
    int ranks, me;   /* processes of the node, this one */
    int slots;       /* of each process */
    uint64_t inside; /* longest message that lies behind its entry */
    uint64_t slot;   /* bytes of one */
} shared_t;

static inline uint64_t shared_stride(const shared_t *s) { return LINE + s->inside; }

/* Acknowledgements first, then requests, then entries (all ordered by reader, writer), then slots. */
static inline uint64_t *shared_ack(const shared_t *s, int writer, int reader) {
    return (uint64_t *)(s->base) + ((uint64_t)reader * s->ranks + writer) * ENTRIES;
}

static inline uint64_t *shared_request(const shared_t *s, int writer, int reader) {
    return shared_ack(s, 0, s->ranks) + (uint64_t)reader * s->ranks + writer;
}

static inline uint64_t shared_entries_at(const shared_t *s) {
    uint64_t pairs = (uint64_t)s->ranks * s->ranks;
    return (pairs * (ENTRIES + 1) * sizeof(uint64_t) + LINE - 1) / LINE * LINE;
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

/* Ask a reader for what it may hold: this process has no room to send.  The reader takes the request
 * back; one that is lost so is repeated at the next attempt to send. */
static inline void shared_ask(const shared_t *s, int reader) {
    uint64_t *request = shared_request(s, s->me, reader);
    if (!__atomic_load_n(request, __ATOMIC_RELAXED)) __atomic_store_n(request, 1, __ATOMIC_RELAXED);
}

/* Whether some writer has asked this process since it was last looked at. */
static inline int shared_was_asked(const shared_t *s) {
    uint64_t *request = shared_request(s, 0, s->me);
    int writer, asked = 0;
    for (writer = 0; writer < s->ranks; writer++)
        if (__atomic_load_n(request + writer, __ATOMIC_RELAXED)) {
            __atomic_store_n(request + writer, 0, __ATOMIC_RELAXED);
            asked = 1;
        }
    return asked;
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
    if (kind == REMOTE) memset(&entry->copy, 0, sizeof entry->copy);
    __atomic_store_n(&entry->use, use, __ATOMIC_RELEASE);
}

static inline char *shared_content(const shared_t *s, int writer, const entry_t *entry) {
    if (entry->kind == SLOT) return shared_slot(s, writer, entry->where);
    return (char *)(entry->length > TINY ? entry->tiny + TINY : entry->tiny);
}

/* Read another process's memory, or write it.  Returns 0, or -1 with errno. */
typedef ssize_t (*shared_access_t)(pid_t, const struct iovec *, unsigned long, const struct iovec *,
                                   unsigned long, unsigned long);

static inline int shared_transfer(shared_access_t access, pid_t process, const char *here,
                                  uint64_t there, uint64_t length) {
    while (length) {
        struct iovec mine = {(void *)here, length}, theirs = {(void *)(uintptr_t)there, length};
        ssize_t done = access(process, &mine, 1, &theirs, 1, 0);
        if (done <= 0) return -1;
        here += done;
        there += (uint64_t)done;
        length -= (uint64_t)done;
    }
    return 0;
}

/* Memory half a page behind an address, whole pages apart: copies to it and from it are fast where
 * those from the address are slow. */
static inline char *shared_between(uint64_t from) {
    static __thread char memory[BETWEEN + COPY_PAGE];
    uint64_t behind = from + COPY_PAGE / 2 - (uint64_t)(uintptr_t)memory;
    return memory + behind % COPY_PAGE;
}

static inline int shared_fetch(pid_t process, char *to, uint64_t from, uint64_t length) {
    if (!copy_is_slow((uint64_t)(uintptr_t)to, from, length))
        return shared_transfer(process_vm_readv, process, to, from, length);
    while (length) {
        uint64_t part = length < BETWEEN ? length : BETWEEN;
        char *between = shared_between(from);
        if (shared_transfer(process_vm_readv, process, between, from, part)) return -1;
        copy_bytes(to, between, part);
        to += part, from += part, length -= part;
    }
    return 0;
}

static inline int shared_store(pid_t process, uint64_t to, const char *from, uint64_t length) {
    if (!copy_is_slow(to, (uint64_t)(uintptr_t)from, length))
        return shared_transfer(process_vm_writev, process, from, to, length);
    while (length) {
        uint64_t part = length < BETWEEN ? length : BETWEEN;
        char *between = shared_between((uint64_t)(uintptr_t)from);
        copy_bytes(between, from, part);
        if (shared_transfer(process_vm_writev, process, between, to, part)) return -1;
        to += part, from += part, length -= part;
    }
    return 0;
}

/* Bytes of the next piece of a message that both sides copy: half of what is left.  Both end at the
 * same time. */
static inline uint64_t shared_piece(uint64_t left) {
    uint64_t piece = left / 2 / 4096 * 4096;
    if (piece < SHORTEST_PIECE) piece = SHORTEST_PIECE;
    return piece < left ? piece : left;
}

/* Take the next piece, or `all` that is left; returns its length, 0 if there is none. */
static inline uint64_t shared_take(shared_copy_t *copy, uint64_t length, int all,
                                   uint64_t *offset) {
    uint64_t piece, taken = __atomic_load_n(&copy->taken, __ATOMIC_RELAXED);
    do {
        if (taken >= length) return 0;
        piece = all ? length - taken : shared_piece(length - taken);
    } while (!__atomic_compare_exchange_n(&copy->taken, &taken, taken + piece, 0, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
    *offset = taken;
    return piece;
}

/* Whether another process is copying this use of an entry from this process. */
static inline int shared_is_copying(const shared_t *s, int reader, uint64_t use) {
    entry_t *entry = shared_entry(s, s->me, reader, use);
    return use && entry->kind == REMOTE && __atomic_load_n(&entry->copy.to, __ATOMIC_RELAXED) &&
           __atomic_load_n(&entry->copy.taken, __ATOMIC_RELAXED) < entry->length;
}

/* The reader: copy pieces until there are none left, or all at once while the writer copies `sent`,
 * the last message to it, and cannot help.  Adds their bytes to `copied`; returns 0, or -1 with
 * errno. */
static inline int shared_fetch_pieces(const shared_t *s, int writer, uint64_t sent, pid_t process,
                                      entry_t *entry, char *to, uint64_t *copied) {
    shared_copy_t *copy = &entry->copy;
    uint64_t offset, length;
    __atomic_store_n(&copy->to, (uint64_t)(uintptr_t)to, __ATOMIC_RELEASE);
    while ((length = shared_take(copy, entry->length, shared_is_copying(s, writer, sent), &offset))) {
        if (shared_fetch(process, to + offset, entry->where + offset, length)) return -1;
        *copied += length;
    }
    return 0;
}

/* The reader: whether the writer's pieces are there, too; -1 with errno if one cannot be read. */
static inline int shared_is_fetched(pid_t process, entry_t *entry, char *to, uint64_t copied) {
    shared_copy_t *copy = &entry->copy;
    uint64_t offset, length;
    if (copied + __atomic_load_n(&copy->helped, __ATOMIC_ACQUIRE) < entry->length) return 0;
    if (copy->failed) {
        offset = copy->failed - 1;
        length = shared_piece(entry->length - offset);
        if (shared_fetch(process, to + offset, entry->where + offset, length)) return -1;
    }
    return 1;
}

/* The writer: copy one piece.  Returns 1, 0 if there is none to copy, -1 with errno. */
static inline int shared_help(const shared_t *s, pid_t process, int reader, uint64_t use) {
    entry_t *entry = shared_entry(s, s->me, reader, use);
    shared_copy_t *copy = &entry->copy;
    uint64_t offset, length, to = __atomic_load_n(&copy->to, __ATOMIC_ACQUIRE);
    int code;
    if (to == 0) return 0;
    length = shared_take(copy, entry->length, 0, &offset);
    if (length == 0) return 0;
    code = shared_store(process, to + offset, (char *)(uintptr_t)entry->where + offset, length);
    if (code) copy->failed = offset + 1;
    __atomic_store_n(&copy->helped, copy->helped + length, __ATOMIC_RELEASE);
    return code ? -1 : 1;
}

static inline void shared_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* Offers the processor to others; whether somebody has run on it meanwhile, as far as the time that
   has passed tells: a switch to another process and back takes longer, a call in vain does not. */
#define SWITCH 2000 /* nanoseconds */
static inline int shared_offer(void) {
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    sched_yield();
    clock_gettime(CLOCK_MONOTONIC, &after);
    return (after.tv_sec - before.tv_sec) * 1000000000L + (after.tv_nsec - before.tv_nsec) > SWITCH;
}

/* A lock that is never waited for while anything else is held. */
static inline int shared_try(int *lock) { return !__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE); }
static inline void shared_unlock(int *lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }

#endif
