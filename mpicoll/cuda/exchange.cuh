/* Collectives by packets: data and flag travel in one 128-byte line, written by one store of eight
   lanes. NVLink and the L2 keep such a line whole (the protocol that NCCL calls LL128 rests on the
   same), so no fence, no barrier and no separate flag is on the way.

   A row is what a warp moves at a time: 4 lines, of each 8 lanes x 16 bytes. Lane 7 of a line carries
   8 bytes of data and the flag; so a row holds 28 cells of 16 bytes and 4 words of 8 (WORDS). Where
   elements of 16 bytes must stay whole, the words are not used (WHOLE).

   For the longest vectors a fence and one flag for several rows cost less than a flag in every line:
   their rows are all data, and the flag's line follows them (BULK). They have slots and steps of
   their own, so that no data lies where a flag is looked for.

   Every warp is a channel of its own: it talks to the warp of the same number on every peer, through
   slots that nobody else uses, and counts its steps in device memory, so that a graph can replay a
   launch. A step is: push own rows to every peer, then take the rows that the peers have pushed in
   the step before. Who has nothing for a peer pushes a bare flag. So a warp that pushes in step s has
   heard from all peers in step s - DEPTH - 1, who then had taken step s - 2 DEPTH - 2: with SLOTS >=
   2 DEPTH + 2 no slot is written before it has been read, also from one launch to the next, whatever
   the launches are. What all warps write in a step lies side by side, so that it spreads evenly over
   memory and links. */

enum { LINES = 512, DEPTH = 1, SLOTS = 4 };
enum Packing { WORDS, WHOLE, BULK };

/* What the host and all launches share, in host memory that the device maps. */
struct Alarm {
    volatile u32 stop; /* given by the host: give up */
    volatile u32 raised;
    volatile u32 peer;
    volatile u32 pad;
    volatile u64 step;
};

struct Args {
    const char *send;
    char *recv;
    i64 n; /* bytes of a block */
    i64 send_stride, recv_stride; /* bytes from a peer's block to the next peer's */
    u64 sends, members; /* who is sent to; whose data is folded, or copied */
    u64 targets; /* who gets what has been folded, in a second phase */
    i64 total; /* bytes of the whole vector, which a second phase cuts into blocks of n bytes */
    u64 *steps; /* of each warp */
    Alarm *alarm;
    u64 limit; /* nanoseconds that a wait may take */
    i64 slot; /* bytes of a slot */
    i64 first; /* offset of the slots */
    i64 channels; /* most warps of any launch */
    i64 second; /* offset of the slots of a second phase from those of the first */
    int rank, kind;
    /* Without a copy through the window, see direct.cuh. */
    u64 keys[2]; /* of the send and the receive buffer */
    const u64 *table; /* where registered memory of every rank is mapped */
    i64 source, target, length, stride; /* offsets in the buffers; bytes; between passes */
    u64 pulls, gives; /* whose data is read, who is written to */
    i64 turn; /* in two phases: rank p folds, or is given, block (p + turn) % P */
    int left, right, place, pad; /* in a ring, see ring.cuh */
    u8 order[64]; /* the rank at each place */
    char *window[P]; /* of every rank, as mapped here */
};

DEVICE u64 now()
{
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

DEVICE Cell load_packet(const char *p)
{
    Cell c;
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(c.a), "=l"(c.b) : "l"(p) : "memory");
    return c;
}

/* By all lanes of a warp, which get the same. */
DEVICE u64 load_flag(const char *p)
{
    u64 flag;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(flag) : "l"(p) : "memory");
    return __shfl_sync(~0u, flag, 0);
}

DEVICE void store_packet(char *p, Cell c)
{
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(c.a), "l"(c.b) : "memory");
}

/* Gives up: what a wait has come to is told to the host. */
static __device__ __noinline__ bool overdue(Alarm *alarm, u64 limit, u64 &since, u32 peer, u64 step)
{
    const u64 t = now();
    if (!since)
        since = t;
    if (!alarm->stop && t - since <= limit)
        return false;
    if (atomicCAS_system((u32 *)&alarm->raised, 0u, 1u) == 0u) {
        alarm->peer = peer;
        alarm->step = step;
        __threadfence_system();
        alarm->raised = 2;
    }
    alarm->stop = 1; /* so the others do not wait as long once more */
    return true;
}

/* ---- Elements of any alignment ---- */

template <class T> DEVICE u64 word_of(const char *p)
{
    u64 word = 0;
#pragma unroll
    for (int i = 0; i < (int)(8 / sizeof(T)); i++)
        word |= (u64)((const T *)p)[i] << (8 * sizeof(T) * i);
    return word;
}
template <class T> DEVICE void put_word(char *p, u64 word)
{
#pragma unroll
    for (int i = 0; i < (int)(8 / sizeof(T)); i++)
        ((T *)p)[i] = (T)(word >> (8 * sizeof(T) * i));
}

/* A word at p, of which `left` bytes belong to the block. */
static __device__ __noinline__ u64 load_word_anyhow(const char *p, i64 left)
{
    if (left >= 8)
        return (u64)p % 4 == 0 ? word_of<u32>(p) : (u64)p % 2 == 0 ? word_of<u16>(p) : word_of<u8>(p);
    u64 word = 0;
    for (int i = 0; i < left; i++)
        word |= (u64)(u8)p[i] << (8 * i);
    return word;
}
static __device__ __noinline__ void store_word_anyhow(char *p, u64 word, i64 left)
{
    if (left >= 8) {
        if ((u64)p % 4 == 0)
            put_word<u32>(p, word);
        else if ((u64)p % 2 == 0)
            put_word<u16>(p, word);
        else
            put_word<u8>(p, word);
        return;
    }
    for (int i = 0; i < left; i++)
        p[i] = (char)(word >> (8 * i));
}

DEVICE u64 load_word(const char *p, i64 left)
{
    return left >= 8 && (u64)p % 8 == 0 ? *(const u64 *)p : load_word_anyhow(p, left);
}
DEVICE void store_word(char *p, u64 word, i64 left)
{
    if (left >= 8 && (u64)p % 8 == 0)
        *(u64 *)p = word;
    else
        store_word_anyhow(p, word, left);
}

/* ---- Rows ---- */

template <Packing W> DEVICE constexpr int row_bytes()
{
    return W == WORDS ? 480 : W == WHOLE ? 448 : 512;
}

/* Where a lane's data lies within a row. */
template <Packing W> struct Lane {
    int lane;
    bool flag; /* carries the flag, and a word of data at most */
    int at;
    DEVICE Lane() : lane(threadIdx.x % 32), flag(W != BULK && lane % 8 == 7)
    {
        at = W == BULK ? lane * 16 : flag ? 448 + lane / 8 * 8 : (lane / 8 * 7 + lane % 8) * 16;
    }
    DEVICE Cell load(const char *row, i64 left) const
    {
        const char *p = row + at;
        left -= at;
        Cell c = {0, 0};
        if (W == WHOLE && flag)
            return c;
        if (!flag && left >= 16 && (u64)p % 16 == 0) {
            const ulonglong2 v = *(const ulonglong2 *)p;
            return {v.x, v.y};
        }
        if (left > 0)
            c.a = load_word(p, left);
        if (!flag && left > 8)
            c.b = load_word(p + 8, left - 8);
        return c;
    }
    DEVICE void store(char *row, Cell c, i64 left) const
    {
        char *p = row + at;
        left -= at;
        if (W == WHOLE && flag)
            return;
        if (!flag && left >= 16 && (u64)p % 16 == 0) {
            *(ulonglong2 *)p = make_ulonglong2(c.a, c.b);
            return;
        }
        if (left > 0)
            store_word(p, c.a, left);
        if (!flag && left > 8)
            store_word(p + 8, c.b, left - 8);
    }
};

/* The channel of a warp. */
template <int U, Packing W> struct Channel {
    const Args &args;
    const Lane<W> lane;
    const int warp, warps;
    const u64 base; /* steps of earlier launches */

    /* `done`: steps of this launch that the warp has taken already. */
    DEVICE Channel(const Args &a, u64 done = 0)
        : args(a), warp((blockIdx.x * blockDim.x + threadIdx.x) / 32),
          warps(gridDim.x * (blockDim.x / 32)), base(a.steps[warp] + done)
    {
    }

    /* Steps that a block of n bytes takes this warp. */
    DEVICE i64 steps(i64 n) const
    {
        const i64 rows = (n + row_bytes<W>() - 1) / row_bytes<W>();
        const i64 portions = (rows + U - 1) / U;
        return (portions - warp + warps - 1) / warps;
    }
    /* First byte of this warp's rows in a step. */
    DEVICE i64 offset(i64 step) const { return (step * warps + warp) * (U * row_bytes<W>()); }

    DEVICE char *slot(int at, int from, i64 step) const
    {
        const u64 number = ((base + step) % SLOTS * P + from) * args.channels + warp;
        return args.window[at] + args.first + number * args.slot + lane.lane * 16;
    }
    /* Where the line with the flag lies in a slot. */
    static constexpr int flag_line = W == BULK ? U * LINES : 0;

    DEVICE void load(const char *block, i64 step, i64 n, Cell (&cells)[U]) const
    {
        const i64 at = offset(step);
#pragma unroll
        for (int u = 0; u < U; u++)
            cells[u] = lane.load(block + at + u * row_bytes<W>(), n - at - u * row_bytes<W>());
    }
    DEVICE void store(char *block, i64 step, i64 n, int u, Cell c) const
    {
        const i64 at = offset(step) + u * row_bytes<W>();
        lane.store(block + at, c, n - at);
    }
    /* Rows of a step that are on the way: the first one always. */
    DEVICE bool used(i64 step, i64 n, int u) const
    {
        return u == 0 || offset(step) + u * row_bytes<W>() < n;
    }

    DEVICE void push(int to, i64 step, i64 n, i64 region, const Cell (&cells)[U]) const
    {
        char *line = slot(to, args.rank, step) + region;
        const u64 flag = base + step + 1;
#pragma unroll
        for (int u = 0; u < U; u++)
            if (used(step, n, u)) {
                char *p = line + u * LINES;
                if (W == BULK)
                    *(ulonglong2 *)p = make_ulonglong2(cells[u].a, cells[u].b);
                else
                    store_packet(p, {cells[u].a, lane.flag ? flag : cells[u].b});
            }
    }
    DEVICE void push_nothing(int to, i64 step, i64 region) const
    {
        if (W != BULK && lane.lane < 8)
            store_packet(slot(to, args.rank, step) + region, {0, base + step + 1});
    }
    /* In bulk: the flags of what was pushed in a step, to all peers. */
    DEVICE void announce(i64 step, i64 region) const
    {
        if (W != BULK)
            return;
        __syncwarp();
        if (lane.lane != 7)
            return;
        asm volatile("fence.acq_rel.sys;" ::: "memory");
        for (int k = 1; k < P; k++) {
            const int to = args.rank + k < P ? args.rank + k : args.rank + k - P;
            store_packet(slot(to, args.rank, step) + region + flag_line, {0, base + step + 1});
        }
    }

    /* What a peer has pushed; false if it has not come in time. */
    DEVICE bool take(int from, i64 step, i64 n, i64 region, Cell (&cells)[U]) const
    {
        const char *line = slot(args.rank, from, step) + region;
        if (W == BULK && !take_nothing(from, step, region))
            return false;
        const u64 flag = base + step + 1;
        u64 since = 0;
        for (u32 polls = 1;; polls++) {
            bool missing = false;
#pragma unroll
            for (int u = 0; u < U; u++)
                if (used(step, n, u)) {
                    cells[u] = load_packet(line + u * LINES);
                    missing |= lane.flag && cells[u].b != flag;
                }
            if (W == BULK || !__any_sync(~0u, missing))
                return true;
            if (polls % 1024 == 0 && late(since, from, step))
                return false;
        }
    }
    /* The flag of a step. */
    DEVICE bool take_nothing(int from, i64 step, i64 region) const
    {
        const char *word = slot(args.rank, from, step) + region + flag_line + (7 - lane.lane) * 16 + 8;
        const u64 flag = base + step + 1;
        u64 since = 0;
        for (u32 polls = 1; load_flag(word) != flag; polls++)
            if (polls % 1024 == 0 && late(since, from, step))
                return false;
        __syncwarp(); /* one lane has seen it: what the others read comes after that */
        return true;
    }
    DEVICE bool late(u64 &since, int from, i64 step) const
    {
        bool over = false;
        if (lane.lane == 0)
            over = overdue(args.alarm, args.limit, since, from, base + step);
        return __any_sync(~0u, over);
    }
    DEVICE void finish(i64 steps) const
    {
        __syncwarp();
        if (lane.lane == 0)
            args.steps[warp] = base + steps;
    }
};

/* One phase: every rank pushes a block to every peer, and folds or copies what comes.

   GATHER: the members' blocks go to places of their own; else they are folded, in rank order. */
template <int U, Packing W, bool GATHER, class Folded>
DEVICE void exchange(const Args &args, u64 done = 0)
{
    const Channel<U, W> channel(args, done);
    const i64 n = args.n, steps = channel.steps(n);
    const int rank = args.rank;
    Cell cells[U];
    for (i64 step = 0; step < steps + DEPTH; step++) {
        if (step < steps) {
            const bool same = args.send_stride == 0;
            if (same && args.sends)
                channel.load(args.send, step, n, cells);
            for (int k = 1; k < P; k++) {
                const int to = rank + k < P ? rank + k : rank + k - P;
                if (!(args.sends >> to & 1)) {
                    channel.push_nothing(to, step, 0);
                    continue;
                }
                if (!same)
                    channel.load(args.send + to * args.send_stride, step, n, cells);
                channel.push(to, step, n, 0, cells);
            }
            channel.announce(step, 0);
        }
        const i64 now = step - DEPTH;
        if (now < 0)
            continue;
        Folded folded[U];
        bool any = false;
#pragma unroll (P <= 2 ? 2 : 1)
        for (int from = 0; from < P; from++) {
            const bool member = args.members >> from & 1;
            if (from == rank) {
                if (!member)
                    continue;
                channel.load(args.send + rank * args.send_stride, now, n, cells);
            } else if (!member) {
                if (!channel.take_nothing(from, now, 0))
                    return;
                continue;
            } else if (!channel.take(from, now, n, 0, cells)) {
                return;
            }
#pragma unroll
            for (int u = 0; u < U; u++) {
                if (GATHER)
                    channel.store(args.recv + from * args.recv_stride, now, n, u, cells[u]);
                else if (any)
                    folded[u].next(args.kind, cells[u]);
                else
                    folded[u].first(args.kind, cells[u]);
            }
            any = true;
        }
        if (!GATHER && any) {
#pragma unroll
            for (int u = 0; u < U; u++)
                channel.store(args.recv, now, n, u, folded[u].value(args.kind));
        }
    }
    channel.finish(steps);
}

/* Two phases: every rank folds, or is given, one block of the vector, and pushes it to the targets.

   With all ranks as members and targets an all-reduce; a reduction with the root as the only target,
   a broadcast with the root as the only member. There the root has no block of its own, so that what
   it sends, or takes, is the vector once. Of an empty block nothing is on the way but flags. The
   slots are free in time here, too: a step ends with the take of second-phase rows, of which the peer
   had taken the first before. */
template <int U, Packing W, class Folded> DEVICE void two_phases(const Args &args, u64 done = 0)
{
    const Channel<U, W> channel(args, done);
    const int rank = args.rank;
    const i64 steps = channel.steps(args.n);
    const auto start = [&](int p) {
        const i64 block = p + args.turn;
        return (block < P ? block : block - P) * args.n;
    };
    const auto length = [&](int p) {
        const i64 rest = args.total - start(p);
        return rest < 0 ? (i64)0 : rest < args.n ? rest : args.n;
    };
    const bool folds = args.members && length(rank), target = args.targets >> rank & 1;
    Cell cells[U];
    for (i64 step = 0; step < steps + 2 * DEPTH; step++) {
        if (step < steps) {
            for (int k = 1; k < P; k++) {
                const int to = rank + k < P ? rank + k : rank + k - P;
                if ((args.sends >> to & 1) && length(to)) {
                    channel.load(args.send + start(to), step, length(to), cells);
                    channel.push(to, step, length(to), 0, cells);
                } else {
                    channel.push_nothing(to, step, 0);
                }
            }
            channel.announce(step, 0);
        }
        const i64 now = step - DEPTH;
        if (0 <= now && now < steps) {
            Folded folded[U];
            bool any = false;
            for (int from = 0; from < P; from++) {
                const bool member = folds && (args.members >> from & 1);
                if (from == rank) {
                    if (!member)
                        continue;
                    channel.load(args.send + start(rank), now, length(rank), cells);
                } else if (!member) {
                    if (!channel.take_nothing(from, now, 0))
                        return;
                    continue;
                } else if (!channel.take(from, now, length(rank), 0, cells)) {
                    return;
                }
#pragma unroll
                for (int u = 0; u < U; u++) {
                    if (any)
                        folded[u].next(args.kind, cells[u]);
                    else
                        folded[u].first(args.kind, cells[u]);
                }
                any = true;
            }
            if (folds) {
#pragma unroll
                for (int u = 0; u < U; u++) {
                    cells[u] = folded[u].value(args.kind);
                    if (target)
                        channel.store(args.recv + start(rank), now, length(rank), u, cells[u]);
                }
            }
            for (int k = 1; k < P; k++) {
                const int to = rank + k < P ? rank + k : rank + k - P;
                if (folds && (args.targets >> to & 1))
                    channel.push(to, now, length(rank), args.second, cells);
                else
                    channel.push_nothing(to, now, args.second);
            }
            channel.announce(now, args.second);
        }
        const i64 then = step - 2 * DEPTH;
        if (then < 0)
            continue;
        for (int k = 1; k < P; k++) {
            const int from = rank + k < P ? rank + k : rank + k - P;
            if (!target || !length(from)) {
                if (!channel.take_nothing(from, then, args.second))
                    return;
                continue;
            }
            if (!channel.take(from, then, length(from), args.second, cells))
                return;
#pragma unroll
            for (int u = 0; u < U; u++)
                channel.store(args.recv + start(from), then, length(from), u, cells[u]);
        }
    }
    channel.finish(steps);
}
