/* Collectives in a ring, where not all GPUs are linked: every rank writes to its right neighbour and
   reads what its left one has written.

   Rows are those in bulk (exchange.cuh), as a fence and a flag are all that a link must keep in order.
   A hop is a step of the warp's channel. The flag goes to both neighbours: to the right one it says
   that the rows are there, to the left one that those of the step before have been taken, so that
   their slot is free again. Blocks are named by the place in the ring of the rank that they belong to:
   first a block travels all around and is folded on its way, ending where it belongs; then it travels
   around again. */

template <int U, class Folded> struct Ring {
    const Args &args;
    const Channel<U, BULK> channel;
    i64 portion = 0;
    u64 step = 0;
    Cell cells[U];

    DEVICE Ring(const Args &a) : args(a), channel(a) {}

    /* The rank to which the block belongs that is so many places to the left of this rank's. */
    DEVICE int owner(int places) const
    {
        const int place = args.place - places;
        return args.order[place < 0 ? place + P : place];
    }
    DEVICE i64 length(int rank) const
    {
        const i64 rest = args.total - rank * args.n;
        return rest < 0 ? (i64)0 : rest < args.n ? rest : args.n;
    }
    DEVICE void load(int rank, Cell (&into)[U]) const
    {
        channel.load(args.send + rank * args.send_stride, portion, length(rank), into);
    }
    DEVICE void store(int rank) const
    {
        for (int u = 0; u < U; u++)
            channel.store(args.recv + rank * args.recv_stride, portion, length(rank), u, cells[u]);
    }

    DEVICE void announce() const
    {
        __syncwarp();
        if (channel.lane.lane != 7)
            return;
        asm volatile("fence.acq_rel.sys;" ::: "memory");
        const Cell flag = {0, channel.base + step + 1};
        store_packet(channel.slot(args.right, args.rank, step) + channel.flag_line, flag);
        store_packet(channel.slot(args.left, args.rank, step) + channel.flag_line, flag);
    }
    /* The slot of this step is free: the right neighbour has taken what was there before. */
    DEVICE bool is_free() const { return step < 2 || channel.take_nothing(args.right, step - 2, 0); }

    /* Cells of one rank's block go to the right, and those of another one's come from the left. */
    DEVICE bool hop(int sent, int taken)
    {
        if (!is_free())
            return false;
        char *line = channel.slot(args.right, args.rank, step);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (channel.used(portion, length(sent), u))
                *(ulonglong2 *)(line + u * LINES) = make_ulonglong2(cells[u].a, cells[u].b);
        announce();
        if (!channel.take_nothing(args.left, step, 0))
            return false;
        line = channel.slot(args.rank, args.left, step);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (channel.used(portion, length(taken), u))
                cells[u] = load_packet(line + u * LINES);
        step++;
        return true;
    }

    DEVICE bool fold_around()
    {
        load(owner(1), cells);
        for (int places = 1; places < P; places++) {
            const int taken = owner(places + 1);
            if (!hop(owner(places), taken))
                return false;
            Cell own[U];
            load(taken, own);
            const bool left_first = args.left < args.rank; /* in rank order */
#pragma unroll
            for (int u = 0; u < U; u++) {
                Folded folded;
                folded.first(args.kind, left_first ? cells[u] : own[u]);
                folded.next(args.kind, left_first ? own[u] : cells[u]);
                cells[u] = folded.value(args.kind);
            }
        }
        return true;
    }
    DEVICE bool hand_around()
    {
        for (int places = 0; places < P - 1; places++) {
            const int taken = owner(places + 1);
            if (!hop(owner(places), taken))
                return false;
            store(taken);
        }
        return true;
    }

    /* The neighbours end together: then nothing of this launch is on its way any more. */
    DEVICE bool end()
    {
        if (!is_free())
            return false;
        announce();
        return channel.take_nothing(args.right, step, 0) && channel.take_nothing(args.left, step, 0);
    }

    DEVICE void run(bool folds, bool gathers)
    {
        const i64 portions = channel.steps(args.n);
        for (; portion < portions; portion++) {
            if (folds) {
                if (!fold_around())
                    return;
            } else {
                load(0, cells); /* the only one */
            }
            if (args.members >> args.rank & 1)
                store(args.rank);
            if (gathers && !hand_around())
                return;
        }
        if (end())
            channel.finish(step + 1);
    }
};

#define IN_A_RING(name, Folded) \
    LAUNCHED(BULK_THREADS) name##_ring(ARGS) \
    { \
        Ring<BULK_ROWS, Folded>(args).run(args.sends != 0, args.targets != 0); \
    }
