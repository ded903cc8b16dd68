package rendezvous

import "fmt"

// modelAgent is an agent by the rules of the protocol: it refuses what an older leader says, enters
// the worlds that it is told of, and reports its whole state.
type modelAgent struct {
	uid         string
	term, round uint64
	digest      string
	rank        int32
	step        uint64
	exits       []int32
	terminating bool
	released    bool
	// worlds are all worlds that it was ever told of, by round.
	worlds map[uint64]string
}

// obey takes a directive. It returns false when it refuses, and an error when the directive breaks
// the protocol.
func (a *modelAgent) obey(d directive) (bool, error) {
	if d.term < a.term || d.round != 0 && d.round < a.round {
		return false, nil
	}
	if d.round != 0 && d.world == nil {
		return false, fmt.Errorf("%s: round %d without a world", a.uid, d.round)
	}
	if d.round != 0 {
		if known, ok := a.worlds[d.round]; ok && known != d.world.digest {
			return false, fmt.Errorf("%s: round %d is %s and was %s", a.uid, d.round, d.world.digest, known)
		}
		if a.worlds == nil {
			a.worlds = map[uint64]string{}
		}
		a.worlds[d.round] = d.world.digest
	}
	a.term = d.term
	a.released = a.released || d.released
	if d.round > a.round {
		a.round, a.digest, a.rank, a.step = d.round, d.world.digest, d.world.workerRank, d.world.fromStep
	}
	return true, nil
}

func (a *modelAgent) report() report {
	r := report{term: a.term, round: a.round, digest: a.digest, terminating: a.terminating}
	if a.round > 0 {
		r.workerRank = uint32(a.rank)
		r.processes = []process{{done: a.step, samples: 10 * a.step, lastStep: 100}}
	}
	for _, code := range a.exits {
		r.processes = []process{{done: a.step, exited: true, exitCode: code}}
	}
	return r
}

func (a *modelAgent) join(attempt int32) agentJoined {
	return agentJoined{uid: a.uid, attempt: attempt, endpoint: endpoint{"10.0.0." + a.uid, 4000}, report: a.report()}
}
