package agent

import (
	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/agent/socket"
	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// launched passes on what a launcher has said.
func (a *agent) launched(message socket.Message) {
	event := lifecycle.Launched{Connection: message.Connection}
	switch message.Body.(type) {
	case nil:
		event.What = lifecycle.LauncherDisconnected
	case wire.Hello:
		event.What = lifecycle.LauncherConnected
	case wire.Stopped:
		event.What = lifecycle.LauncherStopped
	}
	a.send(event)
}

// carryOutLaunch does what concerns a launcher that stays from world to world.
func (a *agent) carryOutLaunch(effect lifecycle.Effect) {
	switch effect := effect.(type) {
	case lifecycle.Lead:
		a.server.Lead(effect.Connection, launchPlace(effect.Start))
	case lifecycle.Relaunch:
		a.log.note("round %d: worker %d of %d, master %s port %d: the launcher starts its processes anew", effect.Start.Round,
			effect.Start.World.WorkerRank, effect.Start.World.Workers, effect.Start.World.MasterAddress, effect.Start.World.MasterPort)
		a.nextPort()
		if err := a.server.Relaunch(effect.Connection, effect.Start.Round, effect.Start.World.FromStep); err != nil {
			a.log.note("%v: ending the launcher", err)
			a.reaper.KillAll(killBound)
			return
		}
		a.server.Lead(effect.Connection, launchPlace(effect.Start))
	case lifecycle.Rest:
		a.server.Rest(effect.Connection)
	}
}

func launchPlace(start lifecycle.Start) socket.Place {
	world := start.World
	return socket.Place{
		Term: start.Term, Round: start.Round, Parent: world.Parent, FromStep: world.FromStep,
		WorkerRank: world.WorkerRank, Workers: world.Workers,
		MasterAddress: world.MasterAddress, MasterPort: world.MasterPort, Restore: world.Restore,
	}
}
