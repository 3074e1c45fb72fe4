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
template <int U, bool WHOLE>
DEVICE bool meet(const Args &args, const Channel<U, WHOLE> &channel, i64 step, u64 (*keys)[2])
{
    const int lane = channel.lane.lane;
    Cell cell = {0, 0};
    if (lane == 0)
        cell = {args.keys[0], args.keys[1]};
    if (lane == 7)
        cell.b = channel.base + step + 1;
    if (lane < 8)
        for (int k = 1; k < P; k++)
            store_packet(channel.slot((args.rank + k) % P, args.rank, step), cell);
    for (int k = 1; k < P; k++) {
        const int from = (args.rank + k) % P;
        const char *line = channel.slot(args.rank, from, step);
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

/* Folds what lies at the members' places, in rank order, and writes it to the targets'. */
template <class Folded>
DEVICE void pull_and_give(const Args &args, char *const *sources, char *const *targets, u64 gives,
                          i64 source, i64 target)
{
    enum { V = 4 };
    const i64 threads = (i64)gridDim.x * blockDim.x;
    const i64 cells = args.length / 16;
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (V - 1) * threads < cells; i += V * threads) {
        Folded folded[V];
        bool any = false;
        for (int p = 0; p < P; p++) {
            if (!(args.pulls >> p & 1))
                continue;
            Cell c[V];
#pragma unroll
            for (int v = 0; v < V; v++)
                c[v] = load_packet(sources[p] + source + 16 * (i + v * threads));
#pragma unroll
            for (int v = 0; v < V; v++)
                if (any)
                    folded[v].next(args.kind, c[v]);
                else
                    folded[v].first(args.kind, c[v]);
            any = true;
        }
        for (int p = 0; p < P; p++)
            if (gives >> p & 1)
#pragma unroll
                for (int v = 0; v < V; v++)
                    store_packet(targets[p] + target + 16 * (i + v * threads),
                                 folded[v].value(args.kind));
    }
    for (; 16 * i < args.length; i += threads) {
        const i64 left = args.length - 16 * i;
        Folded folded;
        bool any = false;
        for (int p = 0; p < P; p++) {
            if (!(args.pulls >> p & 1))
                continue;
            const char *from = sources[p] + source + 16 * i;
            Cell c = {0, 0};
            if (left >= 16) {
                c = load_packet(from);
            } else {
                c.a = load_word(from, left);
                if (left > 8)
                    c.b = load_word(from + 8, left - 8);
            }
            if (any)
                folded.next(args.kind, c);
            else
                folded.first(args.kind, c);
            any = true;
        }
        const Cell c = folded.value(args.kind);
        for (int p = 0; p < P; p++) {
            if (!(gives >> p & 1))
                continue;
            char *to = targets[p] + target + 16 * i;
            if (left >= 16) {
                store_packet(to, c);
            } else {
                store_word(to, c.a, left);
                if (left > 8)
                    store_word(to + 8, c.b, left - 8);
            }
        }
    }
}

/* Directly where all buffers are registered, else by packets; `Other` is called with the steps that
   the first warp has taken. */
template <int U, bool WHOLE, class Folded, class Other>
DEVICE void direct_or(const Args &args, Other other)
{
    __shared__ u64 keys[P][2];
    __shared__ char *sources[P], *targets[P];
    __shared__ int verdict;
    const Channel<U, WHOLE> channel(args);
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
        }
    }
    __syncthreads();
    if (verdict < 0)
        return;
    if (verdict == 0) {
        other(speaker ? 1 : 0);
        return;
    }
    if (args.stride == 0) {
        pull_and_give<Folded>(args, sources, targets, args.gives, args.source, args.target);
    } else {
        for (int k = 0; k < P; k++) {
            const int to = (args.rank + k) % P;
            pull_and_give<Folded>(args, sources, targets, 1ull << to,
                                  args.source + to * args.stride, args.target);
        }
    }
    __threadfence_system();
    __syncthreads();
    if (speaker && meet(args, channel, 1, (u64(*)[2]) nullptr)) {
        __threadfence_system();
        channel.finish(2);
    }
}
