package agent

import (
	"slices"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
	"github.com/concertina-dev/concertina/internal/share"
)

// Of a state in shards a process says itself what it needs, once it has seen how the state was cut.

// upFront are the files of a snapshot that every worker needs that loads it.
func upFront(files []checkpoint.Wanted) []checkpoint.Wanted {
	return slices.DeleteFunc(files, func(f checkpoint.Wanted) bool { return share.IsShard(f.Part) })
}

// shardsOf are the keys of the shards of a world's snapshot.
func shardsOf(parts []lifecycle.Part) (keys []string) {
	for _, p := range parts {
		if share.IsShard(p.Key) {
			keys = append(keys, p.Key)
		}
	}
	return keys
}

// shardsIn are those files of a world's snapshot that have these keys, and what is needed of each.
func shardsIn(world lifecycle.World, keys []string, ranges [][][2]uint64) (files []checkpoint.Wanted) {
	if len(keys) == 0 {
		return nil // also where a program asks that has nothing to load
	}
	for _, file := range wanted(*world.Snapshot, world.Parts, world.Holders, nil) {
		i := slices.Index(keys, file.Part)
		if i < 0 {
			continue
		}
		if i < len(ranges) {
			for _, r := range ranges[i] {
				file.Only = append(file.Only, checkpoint.Range{From: r[0], To: r[1]})
			}
		}
		files = append(files, file)
	}
	return files
}

func (a *agent) fetchShards(fetch lifecycle.FetchShards) {
	a.keeper.Fetch(shardsIn(fetch.World, fetch.Parts, fetch.Ranges), func(err error) {
		a.send(lifecycle.HasShards{FetchShards: fetch, Fetched: fetchedAs(fetch.Round, err)})
	})
}

// hand tells a process where the shards are.
func (a *agent) hand(hand lifecycle.Hand) {
	had := wire.Had{Type: wire.TypeHad, Round: hand.Round, Parts: []wire.Part{}}
	files := shardsIn(hand.World, hand.Parts, hand.Ranges)
	for _, key := range hand.Parts {
		for i := range files {
			if files[i].Part == key {
				had.Parts = append(had.Parts, wire.Part{Key: key, File: a.keeper.PathOf(files[i]), Bytes: files[i].Bytes})
			}
		}
	}
	a.server.Say(hand.Slot, hand.Connection, had)
}

// copyShards gets copies of what other workers have alone.
func (a *agent) copyShards(copies *rendezvousv1.Prefetch) {
	if copies.GetSnapshot() == nil {
		a.keeper.Copy(checkpoint.ID{}, nil)
		return
	}
	of := snapshotOf(copies.GetSnapshot())
	var want []checkpoint.Wanted
	if parts := partsIn(copies.GetParts()); len(parts) > 0 {
		want = wanted(*of, parts, holdersIn(copies.GetHolders()), nil)
	}
	a.keeper.Copy(*idOf(of), want)
}
