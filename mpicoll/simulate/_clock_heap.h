/* What waits for its turn on the clock: heaps, and plain lists, of entries. */
#ifndef MPICOLL_CLOCK_HEAP_H
#define MPICOLL_CLOCK_HEAP_H

#include <stdint.h>
#include <stdlib.h>

/* Attoseconds of a long call do not fit into 64 bits. */
typedef __int128 ticks;

/* Something that waits for its turn: at a time, and of those in order. */
typedef struct {
    ticks time;
    int32_t order[4];
    int32_t message; /* or -1: a round of a channel is through; -2: a resource is free */
    int32_t segment;
    int64_t place; /* of that channel; that resource; or the side that proposes a message */
} clock_entry;

typedef struct {
    clock_entry *items;
    int64_t count, room;
} clock_heap;

static int clock_precedes(const clock_entry *a, const clock_entry *b) {
    if (a->time != b->time) return a->time < b->time;
    for (int i = 0; i < 4; i++)
        if (a->order[i] != b->order[i]) return a->order[i] < b->order[i];
    return 0;
}

static int clock_append(clock_heap *list, clock_entry entry) {
    if (list->count == list->room) {
        int64_t room = list->room ? 2 * list->room : 4;
        clock_entry *items = realloc(list->items, (size_t)room * sizeof *items);
        if (!items) return -1;
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] = entry;
    return 0;
}

static int clock_push(clock_heap *heap, clock_entry entry) {
    if (clock_append(heap, entry)) return -1;
    int64_t at = heap->count - 1;
    for (; at; at = (at - 1) / 2) {
        if (!clock_precedes(&entry, &heap->items[(at - 1) / 2])) break;
        heap->items[at] = heap->items[(at - 1) / 2];
    }
    heap->items[at] = entry;
    return 0;
}

static clock_entry clock_pop(clock_heap *heap) {
    clock_entry first = heap->items[0], last = heap->items[--heap->count];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= heap->count) break;
        if (child + 1 < heap->count &&
            clock_precedes(&heap->items[child + 1], &heap->items[child]))
            child++;
        if (!clock_precedes(&heap->items[child], &last)) break;
        heap->items[at] = heap->items[child];
        at = child;
    }
    heap->items[at] = last;
    return first;
}

static void clock_free_heaps(clock_heap *heaps, int64_t count) {
    if (heaps)
        for (int64_t i = 0; i < count; i++) free(heaps[i].items);
    free(heaps);
}

#endif
