// Package traces reads workloads and measured profiles for internal/replay. Errors name the file and, where one line
// is at fault, the line.
//
//	table.go      CSV with a header
//	workload.go   the two kinds of workload; docs/replay.md has their columns
//	profiles.go   a folder with the tables of measured programs
package traces
