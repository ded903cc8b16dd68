package agent

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

// environment is what one program finds, by the table of docs/program-protocol.md: what the agent
// itself was given, with the variables of the table in place of any of the same name.
func environment(inherited []string, config Config, start lifecycle.Start, program int) []string {
	variables := common(config)
	if start.Check {
		variables = append(variables, variable{EnvCheckDevice, "1"})
	}
	switch {
	case start.Round == 0:
		if config.Launch == LaunchPerProcess {
			variables = append(variables, local(config, program)...)
		}
		return overlay(inherited, variables, append([]string{EnvCheckDevice}, placeVariables...))
	case config.Launch == LaunchPerWorker:
		variables = append(append(variables, ofWorld(start)...), perWorker(config, start)...)
	default:
		variables = append(append(variables, ofWorld(start)...), perProcess(config, start, program)...)
	}
	return overlay(inherited, variables, []string{EnvCheckDevice}) // what the operator says of it is for the first start
}

// placeVariables are those that a program without a place must not find, whoever set them.
var placeVariables = []string{
	"RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
	"PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_BACKEND", "PET_RDZV_ID",
	"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "CONCERTINA_ROUND",
}

type variable struct{ name, value string }

func number(name string, value int) variable { return variable{name, strconv.Itoa(value)} }

func common(config Config) []variable {
	return []variable{
		{EnvNamespace, config.Namespace},
		{EnvJob, config.Job},
		number(EnvAttempt, config.Attempt),
		{EnvSocket, config.Socket},
	}
}

func ofWorld(start lifecycle.Start) []variable {
	return []variable{
		{"CONCERTINA_ROUND", strconv.FormatUint(start.Round, 10)},
		{"JAX_COORDINATOR_ADDRESS", net.JoinHostPort(start.World.MasterAddress, strconv.Itoa(start.World.MasterPort))},
	}
}

func local(config Config, program int) []variable {
	return []variable{number("LOCAL_RANK", program), number("LOCAL_WORLD_SIZE", config.Processes)}
}

func perProcess(config Config, start lifecycle.Start, program int) []variable {
	rank := start.World.WorkerRank*config.Processes + program
	size := start.World.Workers * config.Processes
	return append(local(config, program),
		number("RANK", rank),
		number("WORLD_SIZE", size),
		number("GROUP_RANK", start.World.WorkerRank),
		variable{"MASTER_ADDR", start.World.MasterAddress},
		number("MASTER_PORT", start.World.MasterPort),
		number("JAX_NUM_PROCESSES", size),
		number("JAX_PROCESS_ID", rank),
	)
}

func perWorker(config Config, start lifecycle.Start) []variable {
	return []variable{
		number("PET_NNODES", start.World.Workers),
		number("PET_NODE_RANK", start.World.WorkerRank),
		number("PET_NPROC_PER_NODE", config.Processes),
		{"PET_MASTER_ADDR", start.World.MasterAddress},
		number("PET_MASTER_PORT", start.World.MasterPort),
		{"PET_RDZV_BACKEND", "static"},
		{"PET_RDZV_ID", fmt.Sprintf("%s.%s.%d.%d", config.Namespace, config.Job, config.Attempt, start.Round)},
		number("JAX_NUM_PROCESSES", start.World.Workers),
		number("JAX_PROCESS_ID", start.World.WorkerRank),
	}
}

// overlay puts variables in place of those of the same name, and drops some.
func overlay(inherited []string, variables []variable, dropped []string) []string {
	ours := map[string]bool{}
	for _, name := range dropped {
		ours[name] = true
	}
	for _, v := range variables {
		ours[v.name] = true
	}
	var all []string
	for _, entry := range inherited {
		if name, _, _ := strings.Cut(entry, "="); !ours[name] {
			all = append(all, entry)
		}
	}
	for _, v := range variables {
		all = append(all, v.name+"="+v.value)
	}
	return all
}
