/*
 * Worlds that change while a job trains: terms, rounds, the fence, the barrier, recovery.
 * README.md says what is checked and how this maps to the code.
 *
 * Messages are not queues here. A directive is state, so an agent may look at that of any operator
 * at any time; a report is a copy of the agent's state, and stays with the operator, ageing, until
 * the next. An agent that is cut off is one whose turn does not come, and every delay is an order of
 * turns. All that counts is counted up to a bound, so every run ends; where it ends is checked.
 *
 * A macro that begins with WITHOUT_ takes one rule away. The script that runs the
 * search fails unless spin finds a violation then.
 */
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef OPERATORS
#define OPERATORS 2
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef TERMS
#define TERMS 2
#endif
#ifndef CRASHES
#define CRASHES 1       /* of operators */
#endif
#ifndef LOSSES
#define LOSSES 1        /* of workers that die */
#endif
#ifndef ALARMS
#define ALARMS 1        /* recoveries for a worker that is only silent */
#endif
#ifndef CHANGES
#define CHANGES 1       /* barriers that are begun */
#endif
#ifndef LIFTS
#define LIFTS 1         /* barriers that are given up */
#endif
#ifndef RESUMES
#define RESUMES 0       /* times that an agent lets a parked process go by itself */
#endif
#ifndef UNCLEAR
#define UNCLEAR 0       /* writes of rounds that are made, of which the operator does not hear */
#endif
#ifndef LATES
#define LATES 0         /* times that a new leader decides although some are yet to be heard who may be anywhere */
#endif
#define ALL ((1 << WORKERS) - 1)
#define IN(set, i) (((set) >> (i)) & 1)
#define AT(r, i) reach[(r) * WORKERS + (i)]
#define MAX(x, y) ((x) > (y) -> (x) : (y))

/* What a worker's process is doing. OUT and FINISHED are left for another round only. */
#define JOIN 0
#define TRAINS 1
#define PARKED 2
#define OUT 3
#define FINISHED 4
#define DEAD 5
#define UNHEARD 6       /* only in what an operator knows */
#define VANISHED 7      /* the same: it has ended, and was never heard by this operator */

/* Where a process that trains is: between two steps, before it reads stop, in the collective. */
#define BETWEEN 0
#define BEGUN 1
#define STEPPING 2

/* The record in the cluster; a round's members and first step are written once. */
byte recTerm, recRound;
byte members[ROUNDS + 1], fromStep[ROUNDS + 1], restores[ROUNDS + 1], parent[ROUNDS + 1];
byte owner[TERMS + 1];  /* who has been told that the term is its own: operator + 1 */

/* What only the checks know: steps that all ranks of a round have begun, which makes them count, and the
 * newest round that has one; the furthest that each rank has got to in a round. */
byte committed[ROUNDS + 1], newest;
/* The last step that may still get every rank's part in a round, OPEN_END while that is not settled. It is
 * when a planned change that followed makes its first step: none then that had not before. And when a recovery
 * is written: the step under way may, which goes with its world, if some process had given its part and left
 * or died, and the others had not begun it yet. */
#define OPEN_END 255
byte limit[ROUNDS + 1];
byte reach[(ROUNDS + 1) * WORKERS];
byte crashes, losses, alarms, changes, lifts, resumes, unclear, lates;

typedef Worker {
	/* armedBy is the term of the operator that gave the barrier: the next one counts anew. */
	byte term, round, entered, done, stop, attempt, armedBy;
	byte refused;           /* the newest round that it would not go on to */
	byte state, at
}
Worker w[WORKERS];

/* Of a report only that is kept which may be out of date when it is used. */
typedef View {
	byte state;     /* TRAINS stands for PARKED too */
	byte round;
	bit obeys;      /* the term of this operator */
	bit stepped;    /* while it is open whether a round lives: it has made a step there */
	bit stands;     /* at the barrier; while it is open whether a round lives, where that begins */
	bit refuses     /* the world of this operator */
}

typedef Operator {
	byte term;              /* held; 0 for none */
	byte readTerm, readRound;
	bit read;
	byte world;             /* published or adopted; 0 for none */
	bit burned, armed, aborting, finished;
	bit deaf;               /* the answer to its next write of a round is lost */
	byte attempt, stop, tries;
	View v[WORKERS]
}
Operator o[OPERATORS];

/* ---------------------------------------------------------------- agent and program */

inline forget_barrier(i) {
	w[i].stop = 0; w[i].attempt = 0; w[i].armedBy = 0
}

/* Stands where the round begins, and was not let go since. */
#define WAITS_FOR(i, r) (w[i].state == PARKED && w[i].round == parent[r] && w[i].done == fromStep[r] && w[i].stop == w[i].done)
#ifdef WITHOUT_PARKED
#define MAY_ENTER(i, r) (w[i].state != DEAD && w[i].state != TRAINS)
#define REFUSES(i, r) 0
#else
#define MAY_ENTER(i, r) (w[i].state != DEAD && w[i].state != TRAINS && IN(restores[r], i) || WAITS_FOR(i, r))
#define REFUSES(i, r) (HELD(i) && !IN(restores[r], i) && !WAITS_FOR(i, r))
#endif

inline enter_world(i, r) {
	/* Who does not load a snapshot must have just the state that the round begins with. */
	assert(IN(restores[r], i) || (w[i].state == PARKED && w[i].done == fromStep[r]));
	w[i].round = r;
	w[i].done = fromStep[r]; w[i].entered = fromStep[r];
	w[i].state = TRAINS; w[i].at = BETWEEN;
	forget_barrier(i)
}

#ifdef WITHOUT_TERMS
#define OBEYS(i, p) (o[p].term > 0)
#else
#define OBEYS(i, p) (o[p].term > 0 && o[p].term >= w[i].term)
#endif
#define NEWER(i, p) (o[p].world > w[i].round)
#define SAME(i, p) (o[p].world == w[i].round && w[i].round > 0)
#define HELD(i) (w[i].state == TRAINS || w[i].state == PARKED)

/* One look at the directive of operator p. Each option is there only when it changes something. */
inline obey(i, p) {
	if
	:: d_step { OBEYS(i, p) && o[p].term != w[i].term -> w[i].term = o[p].term }
	:: d_step { OBEYS(i, p) && NEWER(i, p) && IN(members[o[p].world], i) &&
		(!o[p].aborting || IN(restores[o[p].world], i)) && MAY_ENTER(i, o[p].world) ->
		w[i].term = o[p].term; enter_world(i, o[p].world) }
	/* It was let go, and is to go on with the state that it has: it stays in its world, and says so. */
	:: d_step { OBEYS(i, p) && NEWER(i, p) && IN(members[o[p].world], i) && !o[p].aborting && REFUSES(i, o[p].world) &&
		w[i].refused != o[p].world ->
		w[i].term = o[p].term; w[i].refused = o[p].world }
	/* A newer world ends the old one for whoever is still in it, and is to load a snapshot or is not a
	 * member: the round of the directive, or that of its release, is not its own. */
	:: d_step { OBEYS(i, p) && NEWER(i, p) && w[i].state == TRAINS &&
		(!IN(members[o[p].world], i) || !REFUSES(i, o[p].world) || o[p].aborting) ->
		w[i].term = o[p].term; w[i].state = OUT; w[i].at = BETWEEN; forget_barrier(i) }
	:: d_step { OBEYS(i, p) && NEWER(i, p) && w[i].state == PARKED && (!IN(members[o[p].world], i) || o[p].aborting) ->
		w[i].term = o[p].term; w[i].state = OUT; forget_barrier(i) }
	/* It has gone on to a round that was burned since. */
	:: d_step { OBEYS(i, p) && o[p].world > 0 && w[i].round > o[p].world && HELD(i) ->
		w[i].term = o[p].term; w[i].state = OUT; w[i].at = BETWEEN; forget_barrier(i) }
	:: d_step { OBEYS(i, p) && SAME(i, p) && o[p].aborting && HELD(i) ->
		w[i].term = o[p].term; w[i].state = OUT; w[i].at = BETWEEN; forget_barrier(i) }
	:: d_step { OBEYS(i, p) && SAME(i, p) && !o[p].aborting && o[p].armed && HELD(i) &&
		(o[p].term > w[i].armedBy || o[p].attempt > w[i].attempt || o[p].attempt == w[i].attempt && w[i].stop == 0) ->
		w[i].term = o[p].term; w[i].armedBy = o[p].term; w[i].attempt = o[p].attempt;

		/* The agent reads entered after it has written stop, so what it reports covers a step that was
		 * begun without having seen stop. One that had a stop already has seen it. */
		if
		:: w[i].stop == 0 && w[i].state == TRAINS -> w[i].stop = MAX(w[i].entered, o[p].stop)
		:: w[i].stop == 0 && w[i].state == PARKED -> w[i].stop = MAX(w[i].done, o[p].stop)
		:: else -> w[i].stop = MAX(w[i].stop, o[p].stop)
		fi }
	:: d_step { OBEYS(i, p) && SAME(i, p) && !o[p].aborting && !o[p].armed && w[i].stop > 0 ->
		w[i].term = o[p].term; w[i].stop = 0 }
	fi
}

#define WITH(i, j) (!IN(members[w[i].round], j) || AT(w[i].round, j) >= w[i].entered)
#define GONE(i, j) (IN(members[w[i].round], j) && \
	(w[j].round != w[i].round || w[j].state == OUT || w[j].state == DEAD))
#if WORKERS == 2
#define ALL_WITH(i) (WITH(i, 0) && WITH(i, 1))
#define SOMEBODY_GONE(i) (GONE(i, 0) || GONE(i, 1))
#else
#define ALL_WITH(i) (WITH(i, 0) && WITH(i, 1) && WITH(i, 2))
#define SOMEBODY_GONE(i) (GONE(i, 0) || GONE(i, 1) || GONE(i, 2))
#endif

#define LAST(r) MAX(committed[r], fromStep[r])
#define PLANNED(r) (restores[r] != ALL)

inline commit(rnd, made) {
	assert(made <= limit[rnd] && (limit[rnd] != OPEN_END || rnd >= newest));
	assert(made == LAST(rnd) + 1);
	if
	:: committed[rnd] == 0 && PLANNED(rnd) ->
		/* A planned change loses no step, and its parent makes none any more. */
		assert(LAST(parent[rnd]) == fromStep[rnd]);
		limit[parent[rnd]] = fromStep[rnd]
	:: else
	fi;
	committed[rnd] = made;
	newest = MAX(newest, rnd)
}

proctype worker(byte i) {
end:	do
	:: obey(i, 0)
#if OPERATORS == 2
	:: obey(i, 1)
#endif
	/* The program writes entered, then reads stop. */
	:: d_step { w[i].state == TRAINS && w[i].at == BETWEEN && w[i].done < STEPS ->
		w[i].entered = w[i].done + 1; w[i].at = BEGUN }
	:: d_step { w[i].state == TRAINS && w[i].at == BEGUN ->
		if
		:: w[i].stop > 0 && w[i].stop < w[i].entered -> w[i].state = PARKED; w[i].at = BETWEEN
		:: else ->
			w[i].at = STEPPING;
			AT(w[i].round, i) = w[i].entered;
			if
			:: ALL_WITH(i) ->
				/* The step has every rank's part from here on. */
				commit(w[i].round, w[i].entered)
			:: else
			fi
		fi }
	:: d_step { w[i].state == PARKED && (w[i].stop == 0 || w[i].stop > w[i].done) ->
		w[i].state = TRAINS; w[i].entered = w[i].done + 1; w[i].at = BEGUN }
	/* A hold has ended, or the agent believes so: no clock is kept, it may at any moment. */
	:: d_step { resumes < RESUMES && w[i].state == PARKED && w[i].stop > 0 && w[i].stop <= w[i].done ->
		resumes++; w[i].stop = 0 }
	:: d_step { w[i].state == TRAINS && w[i].at == STEPPING && ALL_WITH(i) ->
		w[i].done = w[i].entered; w[i].at = BETWEEN }
	:: d_step { w[i].state == TRAINS && w[i].at == BETWEEN && w[i].done == STEPS ->
		w[i].state = FINISHED; forget_barrier(i) }
	/* The collective fails when a member of it has gone; the process then waits. */
	:: d_step { w[i].state == TRAINS && w[i].at == STEPPING && !ALL_WITH(i) && SOMEBODY_GONE(i) ->
		w[i].state = OUT; w[i].at = BETWEEN; forget_barrier(i) }
	:: d_step { losses < LOSSES && w[i].state != DEAD ->
		losses++; w[i].state = DEAD; w[i].at = BETWEEN; forget_barrier(i);
		w[i].term = 0; w[i].round = 0; w[i].entered = 0; w[i].done = 0; w[i].refused = 0 }
	od
}

/* ---------------------------------------------------------------- operator */

#define V(p, i) o[p].v[i]
#define ENDED(p, i) (V(p, i).state == DEAD || V(p, i).state == VANISHED)
#define OF_WORLD(p, i) IN(members[o[p].world], i)
#define KIND(i) (w[i].state == PARKED -> TRAINS : w[i].state)
#define OBEYED(p, i) (w[i].term == o[p].term)
#ifdef WITHOUT_OWN_TERM
#define SAME_TERM(p, i) 1
#else
#define SAME_TERM(p, i) OBEYED(p, i)
#endif
#ifdef WITHOUT_ATTEMPTS
#define SAME_ATTEMPT(p, i) 1
#define NEW_ATTEMPT(p) skip
#else
#define SAME_ATTEMPT(p, i) (w[i].attempt == o[p].attempt)
#define NEW_ATTEMPT(p) nobody_stands(p)
#endif
#define STANDS(p, i) (o[p].armed && w[i].round == o[p].world && w[i].state == PARKED && \
	w[i].done == o[p].stop && w[i].stop == o[p].stop && SAME_TERM(p, i) && SAME_ATTEMPT(p, i))
/* The term counts while it is open whether a round lives, the round also when it has been left. */
#define OPEN(p) (o[p].world == 0)
#define ROUND(p, i) (OPEN(p) || w[i].state == OUT || w[i].state == FINISHED -> w[i].round : 0)
#define STANDS_THERE(p, i) (OPEN(p) -> o[p].readRound > 0 && WAITS_FOR(i, o[p].readRound) : STANDS(p, i))
#define REFUSED(p, i) (!OPEN(p) && w[i].refused == o[p].world)
#define HAS_STEPPED(p, i) (OPEN(p) && o[p].readRound > 0 && w[i].round == o[p].readRound && w[i].done > fromStep[o[p].readRound])
#define FRESH(p, i) (V(p, i).stepped == HAS_STEPPED(p, i) && V(p, i).state == KIND(i) && V(p, i).round == ROUND(p, i) && V(p, i).refuses == REFUSED(p, i) && \
	V(p, i).obeys == (OPEN(p) && OBEYED(p, i)) && V(p, i).stands == STANDS_THERE(p, i))

inline nobody_stands(p) {
	V(p, 0).stands = 0; V(p, 1).stands = 0; V(p, 0).stepped = 0; V(p, 1).stepped = 0;
#if WORKERS == 3
	V(p, 2).stands = 0; V(p, 2).stepped = 0
#endif
}

inline hear(p, i) {
	d_step { o[p].term > 0 && w[i].state != DEAD && !FRESH(p, i) ->
		V(p, i).state = KIND(i); V(p, i).round = ROUND(p, i);
		V(p, i).refuses = REFUSED(p, i); V(p, i).stepped = HAS_STEPPED(p, i);
		V(p, i).obeys = OPEN(p) && OBEYED(p, i); V(p, i).stands = STANDS_THERE(p, i) }
}

/* That the processes of a pod have ended is told by its kubelet, and true when it is told. What it had
 * reported of the barrier stays true, and where it was while that is open. */
inline hear_of_death(p, i) {
	d_step { o[p].term > 0 && w[i].state == DEAD && !ENDED(p, i) ->
		V(p, i).state = (V(p, i).state == UNHEARD -> VANISHED : DEAD);
		V(p, i).round = (OPEN(p) -> V(p, i).round : 0); V(p, i).obeys = OPEN(p) && V(p, i).obeys;
		V(p, i).refuses = 0 }
}

inline reset(p) {
	o[p].term = 0; o[p].readTerm = 0; o[p].readRound = 0; o[p].read = 0; o[p].world = 0;
	o[p].burned = 0; o[p].armed = 0; o[p].aborting = 0; o[p].finished = 0; o[p].deaf = 0;
	o[p].attempt = 0; o[p].stop = 0; o[p].tries = 0;
	k = 0;
	do
	:: k < WORKERS ->
		V(p, k).state = UNHEARD; V(p, k).round = 0; V(p, k).obeys = 0; V(p, k).stands = 0;
		V(p, k).refuses = 0; V(p, k).stepped = 0; k++
	:: else -> break
	od;
	k = 0
}

#if WORKERS == 2
#define EVERY(P, p) (P(p, 0) && P(p, 1))
#define SOME(P, p) (P(p, 0) || P(p, 1))
#define SET(P, p) (P(p, 0) | (P(p, 1) << 1))
#define LARGEST(P, p) MAX(P(p, 0), P(p, 1))
#else
#define EVERY(P, p) (P(p, 0) && P(p, 1) && P(p, 2))
#define SOME(P, p) (P(p, 0) || P(p, 1) || P(p, 2))
#define SET(P, p) (P(p, 0) | (P(p, 1) << 1) | (P(p, 2) << 2))
#define LARGEST(P, p) MAX(P(p, 0), MAX(P(p, 1), P(p, 2)))
#endif

#ifdef WITHOUT_COMPARE
#define UNCHANGED(t, r) 1
#else
#define UNCHANGED(t, r) (recTerm == (t) && recRound == (r))
#endif

/* A round that the operator has written and does not know of is nobody's world, and its number is used up. */
#ifdef WITHOUT_USED_UP
#define MINE(p) 0
#define MAY_WRITE(p) (recTerm == o[p].term)
#else
#define MINE(p) (recTerm == o[p].term)
#define MAY_WRITE(p) UNCHANGED(o[p].term, o[p].readRound)
#endif

/* A snapshot is taken after every odd step. */
#define SNAPSHOT(made) ((made) > 0 -> (made) - ((made) + 1) % 2 : 0)
/* Of a step that was made in a later world than the leader goes on from nothing may go. Of the world itself, and of what was got from it, the
 * last one may: some may have ended it who were not waited for. What was left behind by a recovery before does not count any more. */
#define FIRST(p) (o[p].world > 0 -> o[p].world : MAX(parent[o[p].readRound], 1))
#define KEPT(p, i) (w[i].round > o[p].world && w[i].done > fromStep[w[i].round] -> w[i].done : (w[i].done > 0 -> w[i].done - 1 : 0))
#define HAS_MORE(p, i) (w[i].state != DEAD && w[i].round >= FIRST(p) && SNAPSHOT(KEPT(p, i)) > start)
#define HAS_DIED(p, i) (w[i].state == DEAD && !ENDED(p, i))

/* The durable write of a round. One that finds another leader's record deposes the operator; one that finds a record of
 * its own learns by it that an earlier write was made. It writes the round of who, start and fresh, which are local. */
inline write_round(p) {
	if
	:: MAY_WRITE(p) ->
		assert(members[o[p].readRound + 1] == 0);       /* a round's number is used once */
		/* Nobody who lives has more than what a recovery begins with. What one has who has just died, and counts yet, is not kept here. */
		assert(fresh != ALL || SOME(HAS_DIED, p) || !SOME(HAS_MORE, p));
		if
		:: fresh == ALL && o[p].readRound > 0 ->
			who_is_over = (o[p].world > 0 -> o[p].world : o[p].readRound);
			limit[who_is_over] = LAST(who_is_over) + (o[p].aborting || SOME(ENDED, p))
		:: else
		fi;
		who_is_over = 0;
		recTerm = o[p].term; recRound = o[p].readRound + 1;
		members[recRound] = who; fromStep[recRound] = start; restores[recRound] = fresh;
		limit[recRound] = OPEN_END;
		parent[recRound] = o[p].world;
		if
		/* It was made, and nobody says so: not before the operator writes again. When it is made late the record
		 * changes later, which nobody sees who does not write. */
		:: o[p].deaf -> o[p].deaf = 0
		:: else ->
			o[p].readRound = recRound;
			o[p].burned = 0; o[p].armed = 0; o[p].aborting = 0; o[p].attempt = 0; o[p].stop = 0; o[p].tries = 0;
			o[p].world = recRound;
			nobody_stands(p)
		fi
	:: else ->
		if
		:: MINE(p) -> o[p].readRound = recRound
		:: else -> reset(p)
		fi
	fi;
	who = 0; start = 0; fresh = 0
}

#define HEARD(p, i) (OF_WORLD(p, i) && V(p, i).round == o[p].world)
#define FAR(p, i) (OF_WORLD(p, i) && w[i].round == o[p].world && HELD(i) -> \
	MAX(w[i].entered, w[i].stop) : 0)
/* It has gone on to a round that this operator has burned. */
#define ASTRAY(p, i) (OF_WORLD(p, i) && V(p, i).state == OUT && V(p, i).round > o[p].world)
#define LEFT(p, i) (HEARD(p, i) && (V(p, i).state == OUT || V(p, i).state == FINISHED))
#define STANDBY(p, i) (V(p, i).state == JOIN)
#define INSIDE(p, i) (V(p, i).round == o[p].readRound)
#ifdef WITHOUT_SHUT_OUT
#define SHUT_OUT(p, i) 1
#else
#define SHUT_OUT(p, i) V(p, i).obeys
#endif
#define NAMED(p, i) IN(members[o[p].readRound], i)
#define TOLD(p, i) (V(p, i).state != UNHEARD && V(p, i).state != VANISHED)     /* it was heard by this leader */
/* It has obeyed this leader, is not in the round that was found, and was to be. */
#define WITHOUT(p, i) (NAMED(p, i) && TOLD(p, i) && !INSIDE(p, i) && SHUT_OUT(p, i))
#define MAY_NEVER(p, i) (WITHOUT(p, i) || NAMED(p, i) && ENDED(p, i) && !INSIDE(p, i))
#define NOT_NAMED_OR_UNTOLD(p, i) (!NAMED(p, i) || !TOLD(p, i))
#define NOT_NAMED_OR_ENDED(p, i) (!NAMED(p, i) || ENDED(p, i) && !INSIDE(p, i))
#define BEFORE(p, i) (TOLD(p, i) && parent[o[p].readRound] > 0 && V(p, i).round == parent[o[p].readRound])
/* Some are yet to be heard who may be anywhere: that is waited for, and not for ever. */
#define AWAITED(p, i) (NAMED(p, i) && V(p, i).state == UNHEARD)
#define TIME(p) (!SOME(AWAITED, p) || lates < LATES)
#define DECIDES(p) lates = lates + SOME(AWAITED, p)
/* Nothing is left of the world before: it makes no step more, and nobody is heard who has anything of it. */
#define ELSEWHERE(p, i) (ENDED(p, i) || TOLD(p, i) && !BEFORE(p, i))

#define NOT_NEEDED_OR_STANDS(p, i) (!OF_WORLD(p, i) || V(p, i).stands)
#define STANDS_ALIVE(p, i) (OF_WORLD(p, i) && V(p, i).stands && !ENDED(p, i))
#define NOT_NEEDED_OR_STANDS_OR_ENDED(p, i) (!OF_WORLD(p, i) || V(p, i).stands || ENDED(p, i))
#define NOT_NEEDED_OR_INSIDE(p, i) (!NAMED(p, i) || INSIDE(p, i))
#define STEPPED(p, i) (NAMED(p, i) && V(p, i).stepped)
#define HEARD_OF(p, i) (V(p, i).state != UNHEARD)
/* Of who has been given the barrier only stop counts: it covers every step that was begun before, and
 * a later one is not made, though its number is written before the process parks. Who has not been
 * given it goes on until it is; the barrier would run after it. */
#ifdef WITHOUT_STOP_ALONE
#define GIVEN(p, i) FAR(p, i)
#else
#define GIVEN(p, i) (w[i].attempt > 0 && FAR(p, i) > 0 -> w[i].stop : 0)
#endif
#define AHEAD(p, i) (GIVEN(p, i) > o[p].stop)
#define IS_FINISHED(p, i) (HEARD(p, i) && V(p, i).state == FINISHED)
#define NOT_NEEDED_OR_FINISHED(p, i) (!OF_WORLD(p, i) || IS_FINISHED(p, i))
#define NOT_NEEDED_OR_ENDED(p, i) (!OF_WORLD(p, i) || ENDED(p, i))
#define IS_ENDED(p, i) (OF_WORLD(p, i) && ENDED(p, i))
/* A newcomer that has left its first world says nothing of the world before, which it was not in: whoever
 * stands there, and has not heard of the next, may be let go, and make a step of it. */
#ifdef WITHOUT_BOTH
#define OF_BOTH(p, i) 1
#define PARENTS_OVER(p, i) 1
#else
#define OF_BOTH(p, i) (!PLANNED(o[p].world) || !IN(restores[o[p].world], i))
#define PARENTS_OVER(p, i) (!PLANNED(o[p].world) || !IN(members[parent[o[p].world]], i) || ENDED(p, i) || \
	(V(p, i).state == OUT || V(p, i).state == FINISHED) && V(p, i).round >= parent[o[p].world])
#endif
/* It was to go on live, and has left the world before instead: it can do neither any more. */
#define LEFT_BEFORE(p, i) (OF_WORLD(p, i) && PLANNED(o[p].world) && \
	(V(p, i).state == OUT || V(p, i).state == FINISHED) && V(p, i).round == parent[o[p].world])
#define HAS_LEFT(p, i) ((LEFT(p, i) || ASTRAY(p, i) || LEFT_BEFORE(p, i)) && OF_BOTH(p, i))
#define IS_OUT(p, i) (HEARD(p, i) && V(p, i).state == OUT || ASTRAY(p, i) || LEFT_BEFORE(p, i) && GOES_LIVE(p, i))
#define GOES_LIVE(p, i) (!IN(restores[o[p].world], i))
#define REFUSES_IT(p, i) (OF_WORLD(p, i) && V(p, i).refuses)
/* Of the round that was found: who goes on live is in it, or stands where it begins. */
#define GOES_ON(p, i) (IN(members[o[p].readRound], i) && !IN(restores[o[p].readRound], i))
#define NOT_LIVE_OR_WAITS(p, i) (!GOES_ON(p, i) || (INSIDE(p, i) || V(p, i).stands) && !ENDED(p, i))
#define IS_INSIDE(p, i) (GOES_ON(p, i) && INSIDE(p, i) && !ENDED(p, i))
#define WILL_NOT(p, i) (GOES_ON(p, i) && V(p, i).state != UNHEARD && (ENDED(p, i) || !INSIDE(p, i) && !V(p, i).stands))
#define USABLE(p, i) (STANDBY(p, i) || V(p, i).state == OUT || V(p, i).state == FINISHED)
#define READY(p, i) STANDBY(p, i)
#define HOLDS(p, i) (LEFT(p, i) && w[i].round == o[p].world || V(p, i).state == OUT && V(p, i).round > o[p].world -> SNAPSHOT(w[i].done) : 0)
#define ALIVE(p, i) (V(p, i).state != UNHEARD && !ENDED(p, i))

#ifdef WITHOUT_FENCE
#define FENCED(p) 1
#else
#define PARENT_ENDED(p, i) (PLANNED(o[p].world) && IN(members[parent[o[p].world]], i) && ENDED(p, i))
#define FENCED(p) (SOME(HAS_LEFT, p) || SOME(LEFT, p) && SOME(PARENT_ENDED, p) || EVERY(NOT_NEEDED_OR_ENDED, p) && EVERY(PARENTS_OVER, p))
#endif
/* What was reported of the round while it was open whether it lives says nothing of its barrier. */
inline adopt(p) {
	o[p].world = o[p].readRound; o[p].burned = 0; nobody_stands(p)
}
#define LEADS(p) (o[p].term > 0 && !o[p].finished)
#define ROOM(p) (o[p].readRound < ROUNDS)
/* What has become of the round that a new leader has found. */
#define INHERITS(p) (LEADS(p) && o[p].world == 0 && o[p].readRound > 0)
#define LATER(p) (parent[o[p].readRound] > 0)   /* it is not the first */
#define LIVES_ON(p) (LATER(p) || !o[p].burned && !SOME(WITHOUT, p))     /* as far as is known */
#define ALL_LOST(p) EVERY(NOT_NAMED_OR_UNTOLD, p)
#ifdef WITHOUT_MAY_NEVER
#define IS_NEVER_WHOLE(p) 1
#else
#define IS_NEVER_WHOLE(p) SOME(MAY_NEVER, p)
#endif
/* The job may begin anew. */
#ifdef WITHOUT_WORD
#define NOTHING_LEFT(p) 1
#else
#define NOTHING_LEFT(p) (!LATER(p) || !SOME(INSIDE, p) && EVERY(ELSEWHERE, p))
#endif
#ifdef WITHOUT_NAMED
#define NEVER_WHOLE(p) SOME(MAY_NEVER, p)
#else
#define NEVER_WHOLE(p) (SOME(WITHOUT, p) || !SOME(INSIDE, p) && SOME(TOLD, p) && EVERY(NOT_NAMED_OR_ENDED, p))
#endif

proctype operator(byte p) {
	byte who, start, fresh, k, who_is_over;
	d_step { reset(p) }
end:	do
	/* Terms. */
	:: d_step { o[p].term == 0 && !o[p].read && recTerm < TERMS && (p == 0 || recTerm > 0) ->
		o[p].read = 1; o[p].readTerm = recTerm; o[p].readRound = recRound }
	:: d_step { o[p].term == 0 && o[p].read ->
		if
		:: UNCHANGED(o[p].readTerm, o[p].readRound) ->
			recTerm = o[p].readTerm + 1; recRound = o[p].readRound;
			o[p].term = recTerm; o[p].read = 0; o[p].readTerm = 0;
			assert(owner[recTerm] == 0);                    /* a term has one owner */
			owner[recTerm] = p + 1
		:: else -> o[p].read = 0; o[p].readTerm = 0; o[p].readRound = 0
		fi }
	:: d_step { crashes < CRASHES && o[p].term > 0 -> crashes++; reset(p) }
	/* A write of which the operator never learns that it was made. */
	:: d_step { crashes < CRASHES && o[p].term == 0 && o[p].read && UNCHANGED(o[p].readTerm, o[p].readRound) ->
		crashes++; recTerm++; reset(p) }

#if UNCLEAR > 0
	:: d_step { unclear < UNCLEAR && LEADS(p) && !o[p].deaf -> unclear++; o[p].deaf = 1 }
#endif

	:: hear(p, 0)
	:: hear(p, 1)
	:: hear_of_death(p, 0)
	:: hear_of_death(p, 1)
#if WORKERS == 3
	:: hear(p, 2)
	:: hear_of_death(p, 2)
#endif

	/* The first world: of all, or of one whom the others are to join. */
#ifndef GROWTH
	:: d_step { LEADS(p) && o[p].readRound == 0 && ROOM(p) && EVERY(HEARD_OF, p) && SOME(READY, p) ->
		who = SET(READY, p); start = 0; fresh = ALL;
		write_round(p) }
#else
	:: d_step { LEADS(p) && o[p].readRound == 0 && ROOM(p) && (V(p, 0).state == JOIN || ENDED(p, 0) && V(p, 1).state == JOIN) ->
		who = (ENDED(p, 0) -> 2 : 1); start = 0; fresh = ALL;
		write_round(p) }
#endif

	/* Adoption. A step was made in the round, or all are in it. */
	:: d_step { INHERITS(p) && (EVERY(NOT_NEEDED_OR_INSIDE, p) || SOME(STEPPED, p)) -> adopt(p) }
	/* Somebody is in a planned one, and the others that go on live can still follow. */
	:: d_step { INHERITS(p) && PLANNED(o[p].readRound) &&
		SOME(IS_INSIDE, p) && EVERY(NOT_LIVE_OR_WAITS, p) -> adopt(p) }
	/* Somebody is in it, and another cannot follow any more: neither world makes a step again. */
	:: d_step { INHERITS(p) && PLANNED(o[p].readRound) &&
		SOME(IS_INSIDE, p) && SOME(WILL_NOT, p) -> adopt(p); o[p].aborting = 1 }
	/* Somebody is in it, and others were not heard in time: it lives, or is left, as they are in it or not. */
	:: d_step { INHERITS(p) && LIVES_ON(p) && SOME(INSIDE, p) && SOME(AWAITED, p) && TIME(p) -> DECIDES(p); adopt(p) }
	:: d_step { INHERITS(p) && LIVES_ON(p) && SOME(INSIDE, p) && TIME(p) -> DECIDES(p); adopt(p); o[p].aborting = 1 }
	/* Nobody is in it, it can never have all its members, and some are in the world before: that goes on. */
	:: d_step { INHERITS(p) && !SOME(INSIDE, p) && IS_NEVER_WHOLE(p) && TIME(p) && LATER(p) && SOME(BEFORE, p) && !ALL_LOST(p) ->
		DECIDES(p); adopt(p); o[p].world = parent[o[p].readRound] }
	/* All that it names have ended, or were never heard: they may have made steps. */
	:: d_step { INHERITS(p) && !SOME(INSIDE, p) && SOME(MAY_NEVER, p) && TIME(p) && LATER(p) && ALL_LOST(p) &&
		SOME(TOLD, p) && (SOME(BEFORE, p) || !SOME(AWAITED, p)) ->
		DECIDES(p); adopt(p); o[p].aborting = 1 }
	/* The same of one after which nothing is left of the world before either, and of the first. */
	:: d_step { INHERITS(p) && !o[p].burned && !SOME(INSIDE, p) && SOME(MAY_NEVER, p) && TIME(p) && LATER(p) && !ALL_LOST(p) &&
		!SOME(BEFORE, p) && NOTHING_LEFT(p) -> DECIDES(p); o[p].burned = 1 }
	:: d_step { INHERITS(p) && !o[p].burned && !LATER(p) && NEVER_WHOLE(p) -> o[p].burned = 1 }
	:: d_step { INHERITS(p) && o[p].burned && ROOM(p) && NOTHING_LEFT(p) && EVERY(HEARD_OF, p) && SOME(ALIVE, p) ->
		who = SET(ALIVE, p); start = 0; fresh = ALL;
		write_round(p) }
	/* One who was let go will not follow: the leader adopts like a new one. */
	:: d_step { LEADS(p) && o[p].world > 0 && !o[p].aborting && SOME(REFUSES_IT, p) -> reset(p) }

	/* The barrier. */
	:: d_step { LEADS(p) && o[p].world > 0 && changes < CHANGES && !o[p].armed && !o[p].aborting && ROOM(p) ->
		changes++; o[p].armed = 1; o[p].attempt++; o[p].tries = 1; NEW_ATTEMPT(p);
		o[p].stop = MAX(1, MAX(fromStep[o[p].world], LARGEST(FAR, p))) }
	/* The same, and what was reported last is old. (A d_step takes the first way that it can go.) */
	:: d_step { LEADS(p) && o[p].world > 0 && changes < CHANGES && !o[p].armed && !o[p].aborting && ROOM(p) &&
		LARGEST(FAR, p) > MAX(1, fromStep[o[p].world]) ->
		changes++; o[p].armed = 1; o[p].attempt++; o[p].tries = 1; NEW_ATTEMPT(p);
		o[p].stop = MAX(1, fromStep[o[p].world]) }
	:: d_step { LEADS(p) && o[p].armed && o[p].stop < STEPS && !SOME(IS_FINISHED, p) && SOME(AHEAD, p) ->
		if
		:: o[p].tries > WORKERS -> o[p].armed = 0       /* given up */
		:: else -> o[p].attempt++; o[p].tries++; NEW_ATTEMPT(p); o[p].stop = LARGEST(GIVEN, p)
		fi;
		assert(o[p].armed || resumes > 0) }             /* a barrier ends */
	:: d_step { LEADS(p) && o[p].armed && (o[p].stop >= STEPS || SOME(IS_FINISHED, p)) -> o[p].armed = 0 }
	:: d_step { LEADS(p) && o[p].armed && lifts < LIFTS -> lifts++; o[p].armed = 0 }
	/* Reached. While nobody was let go it is the last step there. Any of those that stand there may stay, any standby may come. */
	:: d_step { LEADS(p) && o[p].armed && ROOM(p) && EVERY(NOT_NEEDED_OR_STANDS, p) ->
		assert(resumes > 0 || LAST(o[p].world) == o[p].stop || !UNCHANGED(o[p].term, o[p].readRound));
		fresh = SET(READY, p); who = members[o[p].world] | fresh; start = o[p].stop;
		write_round(p) }
	:: d_step { LEADS(p) && o[p].armed && ROOM(p) && EVERY(NOT_NEEDED_OR_STANDS, p) ->
		assert(resumes > 0 || LAST(o[p].world) == o[p].stop || !UNCHANGED(o[p].term, o[p].readRound));
		fresh = SET(READY, p); who = (members[o[p].world] | fresh) & (ALL - 1); start = o[p].stop;
		if
		:: who == 0 -> who = 1
		:: else
		fi;
		if
#ifndef WITHOUT_LIVE
		/* Nobody goes on who stands there: it takes one that has left to know that they make no step. */
		:: (who & members[o[p].world]) == 0 ->
			o[p].aborting = 1; o[p].armed = 0; who = 0; start = 0; fresh = 0
#endif
		:: else -> write_round(p)
		fi }

	/* Reached by all who are left: some have ended, or are silent and taken for lost. The change goes on without them. */
	:: d_step { LEADS(p) && o[p].armed && ROOM(p) && SOME(STANDS_ALIVE, p) &&
		SET(STANDS_ALIVE, p) != members[o[p].world] && (EVERY(NOT_NEEDED_OR_STANDS_OR_ENDED, p) || alarms < ALARMS) ->
		if
		:: EVERY(NOT_NEEDED_OR_STANDS_OR_ENDED, p)
		:: else -> alarms++
		fi;
		fresh = SET(READY, p) & (ALL - members[o[p].world]); who = SET(STANDS_ALIVE, p) | fresh; start = o[p].stop;
		write_round(p) }

	/* Recovery: somebody is lost, has left by itself, or is only silent. */
	:: d_step { LEADS(p) && o[p].world > 0 && !o[p].aborting && (SOME(IS_ENDED, p) || SOME(IS_OUT, p)) ->
		o[p].aborting = 1; o[p].armed = 0 }
	:: d_step { LEADS(p) && o[p].world > 0 && !o[p].aborting && alarms < ALARMS ->
		alarms++; o[p].aborting = 1; o[p].armed = 0 }
	:: d_step { LEADS(p) && o[p].aborting && ROOM(p) && FENCED(p) && SOME(USABLE, p) ->
		who = SET(USABLE, p); start = MAX(fromStep[o[p].world], LARGEST(HOLDS, p)); fresh = ALL;
		write_round(p) }

	:: d_step { LEADS(p) && o[p].world > 0 && !o[p].aborting && EVERY(NOT_NEEDED_OR_FINISHED, p) -> o[p].finished = 1; o[p].armed = 0 }
	od
}

/* Where every run ends: the leader has seen the newest world finish, or what the bounds allow is used
 * up, or nobody is left. */
#define LIVES(i) (w[i].state != DEAD)
#define DONE(p) (o[p].finished && o[p].term == recTerm)
#if WORKERS == 2
#define NOBODY (!LIVES(0) && !LIVES(1))
#else
#define NOBODY (!LIVES(0) && !LIVES(1) && !LIVES(2))
#endif
#if OPERATORS == 2
#define FINALLY (DONE(0) || DONE(1))
#define LED (o[0].term == recTerm || o[1].term == recTerm)
#else
#define FINALLY DONE(0)
#define LED (o[0].term == recTerm)
#endif

active proctype monitor() {
	byte n;
	atomic {
		n = 0;
		do
		:: n < WORKERS -> run worker(n); n++
		:: else -> break
		od;
		n = 0;
		do
		:: n < OPERATORS -> run operator(n); n++
		:: else -> break
		od;
		n = 0
	}
#ifndef OPEN_ENDED      /* without an alarm nobody asks again who has finished in a round that was burned */
	timeout -> assert(FINALLY || NOBODY || recRound == ROUNDS || recTerm == TERMS && !LED)
#endif
}
