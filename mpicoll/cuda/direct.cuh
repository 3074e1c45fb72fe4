/* Collectives without a copy through the window: peers' registered memory is read and written where
   it lies.

   Whether all ranks' buffers are registered no rank knows alone. So the first warp of every block
   tells the peers where its rank's buffers are, in a packet, and reads theirs: all ranks see the same,
   and go the same way, without the host. The packet says too that what was enqueued before is done on
   that GPU; another one at the end that nobody reads or writes this rank's memory any more. */

enum : u64 { NOT_REGISTERED = 0, NOT_NEEDED = ~0ull };

/* Index of the registered memory (from 1) and offset in it. */
DEVICE char *address_of(const Args &args, int rank, u64 key)
{
    if (key == NOT_NEEDED)
        return nullptr;
    const u64 index = (key >> 48) - 1;
    return (char *)args.table[index * P + rank] + (key & 0xffffffffffffull);
}

/* One block meets the blocks of the same number on all peers. False if they do not come. */
template <int U, Packing W>
DEVICE bool meet(const Args &args, const Channel<U, W> &channel, i64 step, u64 (*keys)[2])
{
    const int lane = channel.lane.lane;
    Cell cell = {0, 0};
    if (lane == 0)
        cell = {args.keys[0], args.keys[1]};
    if (lane == 7)
        cell.b = channel.base + step + 1;
    if (lane < 8)
        for (int k = 1; k < P; k++)
            store_packet(channel.slot((args.rank + k) % P, args.rank, step) + channel.flag_line, cell);
    for (int k = 1; k < P; k++) {
        const int from = (args.rank + k) % P;
        const char *line = channel.slot(args.rank, from, step) + channel.flag_line;
        u64 since = 0;
        for (u32 polls = 1;; polls++) {
            if (lane < 8)
                cell = load_packet(line);
            if (!__any_sync(~0u, lane == 7 && cell.b != channel.base + step + 1))
                break;
            if (polls % 1024 == 0 && channel.late(since, from, step))
                return false;
        }
        if (keys && lane == 0)
            keys[from][0] = cell.a, keys[from][1] = cell.b;
    }
    return true;
}

/* Some cells, from a thread's i-th on, `apart` cells apart. */
template <int V, class Folded>
DEVICE void move(const Args &args, char *const *sources, char *const *targets, i64 i, i64 apart)
{
    const int passes = args.stride ? P : 1;
    for (int k = 0; k < passes; k++) {
        const int to = (args.rank + k) % P;
        const i64 source = args.source + (args.stride ? to * args.stride : 0);
        const u64 gives = args.stride ? 1ull << to : args.gives;
        Folded folded[V];
        bool any = false;
        for (int p = 0; p < P; p++) {
            if (!(args.pulls >> p & 1))
                continue;
            Cell c[V];
#pragma unroll
            for (int v = 0; v < V; v++) {
                const i64 at = 16 * (i + v * apart), left = args.length - at;
                const char *from = sources[p] + source + at;
                if (V > 1 || left >= 16) {
                    c[v] = load_packet(from);
                } else {
                    c[v] = {load_word(from, left), left > 8 ? load_word(from + 8, left - 8) : 0};
                }
            }
#pragma unroll
            for (int v = 0; v < V; v++)
                if (any)
                    folded[v].next(args.kind, c[v]);
                else
                    folded[v].first(args.kind, c[v]);
            any = true;
        }
        for (int turn = 0; turn < P; turn++) { /* not all ranks to the same one at a time */
            const int p = (args.rank + turn) % P;
            if (!(gives >> p & 1))
                continue;
#pragma unroll
            for (int v = 0; v < V; v++) {
                const i64 at = 16 * (i + v * apart), left = args.length - at;
                char *into = targets[p] + args.target + at;
                const Cell c = folded[v].value(args.kind);
                if (V > 1 || left >= 16) {
                    store_packet(into, c);
                } else {
                    store_word(into, c.a, left);
                    if (left > 8)
                        store_word(into + 8, c.b, left - 8);
                }
            }
        }
    }
}

/* Folds what lies at the members' places, in rank order, and writes it to the targets'. */
template <class Folded>
DEVICE void pull_and_give(const Args &args, char *const *sources, char *const *targets)
{
    enum { V = 4 };
    const i64 threads = (i64)gridDim.x * blockDim.x;
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; 16 * (i + (V - 1) * threads + 1) <= args.length; i += V * threads)
        move<V, Folded>(args, sources, targets, i, threads);
    for (; 16 * i < args.length; i += threads)
        move<1, Folded>(args, sources, targets, i, threads);
}

/* Directly where all buffers are registered, else by packets; `Other` is called with the steps that
   the first warp has taken. */
template <int U, Packing W, class Folded, class Other>
DEVICE void direct_or(const Args &args, Other other)
{
    __shared__ u64 keys[P][2];
    __shared__ char *sources[P], *targets[P];
    __shared__ int verdict;
    const Channel<U, W> channel(args);
    const bool speaker = threadIdx.x < 32;
    if (speaker) {
        const bool met = meet(args, channel, 0, keys);
        if (channel.lane.lane == 0) {
            keys[args.rank][0] = args.keys[0], keys[args.rank][1] = args.keys[1];
            bool all = true;
            for (int p = 0; p < P; p++)
                all &= keys[p][0] != NOT_REGISTERED && keys[p][1] != NOT_REGISTERED;
            if (met && all)
                for (int p = 0; p < P; p++) {
                    const bool own = p == args.rank;
                    sources[p] = own ? (char *)args.send : address_of(args, p, keys[p][0]);
                    targets[p] = own ? args.recv : address_of(args, p, keys[p][1]);
                }
            verdict = met ? all : -1;
            __threadfence_system(); /* what is read from now on was written before the peers met */
        }
    }
    __syncthreads();
    if (verdict < 0)
        return;
    if (verdict == 0) {
        other(speaker ? 1 : 0);
        return;
    }
    pull_and_give<Folded>(args, sources, targets);
    __threadfence_system();
    __syncthreads();
    if (speaker && meet(args, channel, 1, (u64(*)[2]) nullptr)) {
        __threadfence_system();
        channel.finish(2);
    }
}
