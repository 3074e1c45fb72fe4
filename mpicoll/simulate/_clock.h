/* The clock of clock.py and the ports of ports.py, for millions of messages.
 *
 * Which messages there are is known before (compiled.py): each has a round of its sender and one of its
 * receiver.  What follows is the same as there, event by event, so that times are the same:
 * a message is ready when both rounds are posted; it goes when either end has a free port, the one
 * that waits longest first, then by position, distance, channel and sender; a round is through when
 * all its messages have arrived, and what it reduces is reduced; then the channel's next one is
 * posted, and after the last one the segment that waits for it.
 *
 * Messages, rounds and channels are those of one segment of each strand: segments s, s + strands, ...
 * are alike but for lengths.  On a network a message holds ports and links each for a time of its own
 * (network.py), and they are freed by events of their own.
 */
#ifndef MPICOLL_CLOCK_H
#define MPICOLL_CLOCK_H

#include "_clock_heap.h"

/* What is run; see compiled.py for the arrays. */
typedef struct {
    int32_t ranks, channels, segments, window, ports, pairs, strands;
    const int64_t *first_round, *first_side, *reduced, *reduced_longer;
    const int32_t *sides;
    const uint8_t *receives;
    const int32_t *sender, *receiver, *position, *distance, *channel, *pair, *link;
    const int64_t *blocks, *longer, *slowdown;
    const int64_t *shorter, *more; /* bytes of a segment of a short block; what a long one has more */
    const int64_t *first_piece, *upto, *alpha, *beta;
    const int64_t *rank_slowdown;
    int64_t unit_slowdown, step, gamma, messages;
    /* Of a network: the route of each pair, and who sends over each link; latency is NULL without. */
    const int64_t *latency, *out_beta, *into_beta, *beta_of_pair, *link_beta;
    const int32_t *first_link, *link_of_pair, *first_user, *user;
    int64_t overhead;
    int32_t links;
} clock_program;

typedef struct {
    const clock_program *of;
    ticks now, *finish;
    int64_t *sent, delivered, number, through;
    int64_t *cursor;      /* of each channel: its next round */
    int32_t *outstanding; /* of each channel: messages of its round under way */
    int32_t *running;     /* of each rank and segment: channels that are not complete */
    uint8_t *posted;      /* of each message and segment: its sides that are posted */
    uint8_t *taken;       /* of each link: a message is on it */
    int32_t *free[2];     /* ports of each rank, by side: 0 of senders, 1 of receivers */
    uint8_t *is_changed[2];
    int32_t *changed[2];
    int64_t changes[2];
    clock_heap *queues, *heads[2]; /* by pair; by rank */
    clock_heap events, proposed, busy, ready, complete, todo; /* the last three are plain lists */
} clock_state;

/* --- rounds ----------------------------------------------------------------------------------- */

static int64_t clock_place(const clock_program *of, int32_t rank, int32_t segment, int32_t channel) {
    return ((int64_t)rank * of->segments + segment) * of->channels + channel;
}

/* The first of the rounds of a channel, for all segments of its strand. */
static int64_t clock_rounds(const clock_program *of, int64_t place) {
    int64_t of_rank = place / of->channels;
    int64_t rank = of_rank / of->segments, strand = of_rank % of->segments % of->strands;
    return (rank * of->strands + strand) * of->channels + place % of->channels;
}

static ticks clock_bytes(const clock_program *of, int64_t blocks, int64_t longer, int32_t segment) {
    return (ticks)blocks * of->shorter[segment] + (ticks)longer * of->more[segment];
}

static int clock_post(clock_state *self, int64_t place, int64_t round) {
    const clock_program *of = self->of;
    int32_t segment = (int32_t)(place / of->channels % of->segments);
    int64_t end = of->first_side[round + 1];
    self->outstanding[place] = (int32_t)(end - of->first_side[round]);
    for (int64_t side = of->first_side[round]; side < end; side++) {
        int32_t message = of->sides[side];
        int64_t turn = message * (int64_t)(of->segments / of->strands) + segment / of->strands;
        if (++self->posted[turn] == 2 &&
            clock_append(&self->ready, (clock_entry){.message = message, .segment = segment}))
            return -1;
    }
    return 0;
}

/* Post a channel's next round; after its last one open the segment that waits for it. */
static int clock_next(clock_state *self, int64_t place) {
    const clock_program *of = self->of;
    self->todo.count = 0;
    if (clock_append(&self->todo, (clock_entry){.place = place})) return -1;
    for (int64_t i = 0; i < self->todo.count; i++) {
        int64_t at = self->todo.items[i].place, of_rank = at / of->channels;
        int64_t segment = of_rank % of->segments;
        int64_t last = of->first_round[clock_rounds(of, at) + 1];
        if (self->cursor[at] < last) {
            if (clock_post(self, at, self->cursor[at]++)) return -1;
            continue;
        }
        if (--self->running[of_rank]) continue;
        self->through++;
        if (segment + of->window >= of->segments) continue;
        for (int32_t channel = 0; channel < of->channels; channel++) {
            int64_t opens = (of_rank + of->window) * of->channels + channel;
            if (clock_append(&self->todo, (clock_entry){.place = opens})) return -1;
        }
    }
    return 0;
}

/* What a rank still has to do when all messages of a round are through. */
static ticks clock_after(const clock_state *self, int64_t place) {
    const clock_program *of = self->of;
    int64_t round = self->cursor[place] - 1, of_rank = place / of->channels;
    if (!of->receives[round]) return 0;
    ticks bytes = clock_bytes(
        of, of->reduced[round], of->reduced_longer[round], (int32_t)(of_rank % of->segments)
    );
    return (of->step + of->gamma * bytes) * of->rank_slowdown[of_rank / of->segments] / of->unit_slowdown;
}

/* --- ports ------------------------------------------------------------------------------------ */

static void clock_change(clock_state *self, int side, int32_t rank) {
    if (self->is_changed[side][rank]) return;
    self->is_changed[side][rank] = 1;
    self->changed[side][self->changes[side]++] = rank;
}

static int clock_is_first(const clock_state *self, const clock_entry *entry) {
    const clock_heap *queue = &self->queues[self->of->pair[entry->message]];
    return queue->count && queue->items[0].message == entry->message &&
           queue->items[0].segment == entry->segment;
}

static int clock_announce(clock_state *self, const clock_entry *entry) {
    return clock_push(&self->heads[0][self->of->sender[entry->message]], *entry) ||
                   clock_push(&self->heads[1][self->of->receiver[entry->message]], *entry)
               ? -1
               : 0;
}

static int clock_wait(clock_state *self, int32_t message, int32_t segment) {
    const clock_program *of = self->of;
    clock_entry entry = {
        .time = self->now,
        .order = {
            of->position[message],
            of->distance[message],
            segment * of->channels + of->channel[message],
            of->sender[message],
        },
        .message = message,
        .segment = segment,
    };
    if (clock_push(&self->queues[of->pair[message]], entry)) return -1;
    if (clock_is_first(self, &entry) && clock_announce(self, &entry)) return -1;
    clock_change(self, 0, of->sender[message]);
    clock_change(self, 1, of->receiver[message]);
    return 0;
}

static int clock_way_is_free(const clock_state *self, int32_t message) {
    const clock_program *of = self->of;
    if (!of->latency) return 1;
    int32_t pair = of->pair[message];
    for (int32_t i = of->first_link[pair]; i < of->first_link[pair + 1]; i++)
        if (self->taken[of->link_of_pair[i]]) return 0;
    return 1;
}

/* A rank that has a free port proposes its first message whose other end has one too. */
static int clock_propose(clock_state *self, int side, int32_t rank) {
    const clock_program *of = self->of;
    const int32_t *other_end = side ? of->sender : of->receiver;
    clock_heap *heads = &self->heads[side][rank];
    if (!self->free[side][rank]) return 0;
    self->busy.count = 0;
    while (heads->count) {
        clock_entry first = heads->items[0];
        if (!clock_is_first(self, &first)) {
            clock_pop(heads); /* it has gone */
        } else if (self->free[1 - side][other_end[first.message]] &&
                   clock_way_is_free(self, first.message)) {
            first.place = side;
            if (clock_push(&self->proposed, first)) return -1;
            break;
        } else if (clock_append(&self->busy, clock_pop(heads))) {
            return -1;
        }
    }
    for (int64_t i = 0; i < self->busy.count; i++)
        if (clock_push(heads, self->busy.items[i])) return -1;
    return 0;
}

/* Resources: the output ports of all ranks, their input ports, the links. */
static int clock_hold(clock_state *self, int64_t resource, ticks until) {
    clock_entry event = {.time = until, .message = -2, .place = resource};
    return clock_push(&self->events, event);
}

static void clock_release(clock_state *self, int64_t resource) {
    const clock_program *of = self->of;
    int64_t link = resource - 2 * (int64_t)of->ranks;
    if (link < 0) {
        int side = resource >= of->ranks;
        int32_t rank = (int32_t)(resource - (int64_t)side * of->ranks);
        self->free[side][rank]++;
        clock_change(self, side, rank);
        return;
    }
    self->taken[link] = 0;
    for (int32_t i = of->first_user[link]; i < of->first_user[link + 1]; i++)
        clock_change(self, 0, of->user[i]);
}

/* What a message occupies on a network; how long it takes. */
static int clock_travel(clock_state *self, int32_t message, ticks bytes, ticks *lasts) {
    const clock_program *of = self->of;
    int32_t pair = of->pair[message];
    int64_t ranks = of->ranks, latency = of->latency[pair];
    ticks free_at = self->now + (of->overhead < latency ? of->overhead : latency);
    if (clock_hold(self, of->sender[message], free_at + of->out_beta[pair] * bytes) ||
        clock_hold(self, ranks + of->receiver[message], free_at + of->into_beta[pair] * bytes))
        return -1;
    for (int32_t i = of->first_link[pair]; i < of->first_link[pair + 1]; i++) {
        int32_t link = of->link_of_pair[i];
        self->taken[link] = 1;
        if (clock_hold(self, 2 * ranks + link, self->now + of->link_beta[i] * bytes)) return -1;
    }
    *lasts = latency + of->beta_of_pair[pair] * bytes;
    return 0;
}

static int clock_start(clock_state *self, const clock_entry *entry) {
    const clock_program *of = self->of;
    int32_t message = entry->message, link = of->link[message];
    int32_t ends[2] = {of->sender[message], of->receiver[message]};
    clock_heap *queue = &self->queues[of->pair[message]];
    clock_pop(queue);
    if (queue->count && clock_announce(self, &queue->items[0])) return -1;
    ticks bytes = clock_bytes(of, of->blocks[message], of->longer[message], entry->segment);
    ticks lasts;
    if (of->latency) {
        if (clock_travel(self, message, bytes, &lasts)) return -1;
    } else {
        int64_t piece = of->first_piece[link];
        while (piece + 1 < of->first_piece[link + 1] && bytes > of->upto[piece]) piece++;
        lasts = of->alpha[piece] + of->beta[piece] * bytes;
    }
    clock_entry arrives = *entry;
    arrives.time = self->now + lasts * of->slowdown[message] / of->unit_slowdown;
    arrives.order[0] = arrives.order[1] = arrives.order[2] = arrives.order[3] = 0;
    self->sent[ends[0]] += (int64_t)bytes;
    self->delivered++;
    if (clock_push(&self->events, arrives)) return -1;
    for (int side = 0; side < 2; side++) self->free[side][ends[side]]--;
    for (int side = 0; side < 2; side++)
        if (clock_propose(self, side, ends[side])) return -1;
    return 0;
}

/* Begin all messages that can go now. */
static int clock_begin(clock_state *self) {
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < self->changes[side]; i++) {
            int32_t rank = self->changed[side][i];
            self->is_changed[side][rank] = 0;
            if (clock_propose(self, side, rank)) return -1;
        }
        self->changes[side] = 0;
    }
    while (self->proposed.count) {
        clock_entry entry = clock_pop(&self->proposed);
        int side = (int)entry.place;
        int32_t ends[2] = {self->of->sender[entry.message], self->of->receiver[entry.message]};
        int goes = self->free[0][ends[0]] && self->free[1][ends[1]] &&
                   clock_is_first(self, &entry) && clock_way_is_free(self, entry.message);
        if (goes ? clock_start(self, &entry) : clock_propose(self, side, ends[side])) return -1;
    }
    return 0;
}

/* --- the clock -------------------------------------------------------------------------------- */

static void clock_done_until(clock_state *self, int64_t rank, ticks time) {
    if (self->finish[rank] < time) self->finish[rank] = time;
}

/* A message has arrived: its ports are free, and its rounds may be through.  A network frees them by
 * events of their own. */
static int clock_arrive(clock_state *self, const clock_entry *entry) {
    const clock_program *of = self->of;
    int32_t ends[2] = {of->sender[entry->message], of->receiver[entry->message]};
    for (int side = 0; side < 2; side++) {
        int64_t place = clock_place(of, ends[side], entry->segment, of->channel[entry->message]);
        if (!of->latency) clock_release(self, side * (int64_t)of->ranks + ends[side]);
        clock_done_until(self, ends[side], self->now);
        if (!--self->outstanding[place] &&
            clock_append(&self->complete, (clock_entry){.place = place}))
            return -1;
    }
    return 0;
}

/* Go on for so many messages and rounds: 1 if there are more, 0 if none are left, -1: no memory. */
static int clock_run(clock_state *self, int64_t most) {
    const clock_program *of = self->of;
    while (most > 0) {
        for (int64_t i = 0; i < self->complete.count; i++) { /* grows while it is read */
            int64_t place = self->complete.items[i].place;
            ticks later = self->now + clock_after(self, place);
            clock_done_until(self, place / of->channels / of->segments, later);
            if (later == self->now) {
                if (clock_next(self, place)) return -1;
            } else {
                clock_entry through = {.time = later, .message = -1, .place = place};
                if (clock_push(&self->events, through)) return -1;
            }
        }
        self->complete.count = 0;
        for (int64_t i = 0; i < self->ready.count; i++)
            if (clock_wait(self, self->ready.items[i].message, self->ready.items[i].segment))
                return -1;
        self->ready.count = 0;
        if (clock_begin(self)) return -1;
        if (!self->events.count) return 0;
        self->now = self->events.items[0].time;
        while (self->events.count && self->events.items[0].time == self->now) {
            clock_entry event = clock_pop(&self->events);
            most--;
            if (event.message == -2)
                clock_release(self, event.place);
            else if (event.message < 0 ? clock_next(self, event.place) : clock_arrive(self, &event))
                return -1;
        }
    }
    return 1;
}

static void clock_close(clock_state *self) {
    clock_heap *lists[] = {&self->events, &self->proposed, &self->busy,
                           &self->ready,  &self->complete, &self->todo};
    for (int i = 0; i < 6; i++) free(lists[i]->items);
    clock_free_heaps(self->queues, self->of->pairs);
    for (int side = 0; side < 2; side++) {
        clock_free_heaps(self->heads[side], self->of->ranks);
        free(self->free[side]);
        free(self->is_changed[side]);
        free(self->changed[side]);
    }
    free(self->cursor);
    free(self->outstanding);
    free(self->running);
    free(self->posted);
    free(self->taken);
}

/* All ranks begin.  `finish` and `sent` have an entry for each rank, 0 all of them. */
static int clock_open(
    clock_state *self, const clock_program *of, ticks *finish, int64_t *sent
) {
    size_t ranks = (size_t)of->ranks, segments = (size_t)of->segments;
    size_t places = ranks * segments * (size_t)of->channels;
    *self = (clock_state){.of = of, .finish = finish, .sent = sent};
    self->cursor = malloc(places * sizeof *self->cursor + 1);
    self->outstanding = calloc(places + 1, sizeof *self->outstanding);
    self->running = malloc(ranks * segments * sizeof *self->running + 1);
    self->posted = calloc((size_t)of->messages * (segments / (size_t)of->strands) + 1, 1);
    self->taken = calloc((size_t)of->links + 1, 1);
    self->queues = calloc((size_t)of->pairs + 1, sizeof *self->queues);
    int all = self->cursor && self->outstanding && self->running && self->posted && self->queues &&
              self->taken;
    for (int side = 0; side < 2; side++) {
        self->heads[side] = calloc(ranks + 1, sizeof *self->heads[side]);
        self->free[side] = malloc(ranks * sizeof *self->free[side] + 1);
        self->is_changed[side] = calloc(ranks + 1, 1);
        self->changed[side] = malloc(ranks * sizeof *self->changed[side] + 1);
        all = all && self->heads[side] && self->free[side] && self->is_changed[side] &&
              self->changed[side];
        for (size_t rank = 0; all && rank < ranks; rank++) self->free[side][rank] = of->ports;
    }
    if (!all) return -1;
    for (size_t i = 0; i < ranks * segments; i++) self->running[i] = of->channels;
    for (size_t place = 0; place < places; place++)
        self->cursor[place] = of->first_round[clock_rounds(of, (int64_t)place)];
    for (int32_t rank = 0; rank < of->ranks; rank++)
        for (int32_t segment = 0; segment < of->segments && segment < of->window; segment++)
            for (int32_t channel = 0; channel < of->channels; channel++)
                if (clock_next(self, clock_place(of, rank, segment, channel))) return -1;
    return 0;
}

#endif
