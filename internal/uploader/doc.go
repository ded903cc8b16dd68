// Package uploader is how the agent speaks to what runs beside it where a job has a storage. The uploader (package
// server) makes snapshots durable and brings them back. It has the storage's credentials, which the training program
// in the other container must not have, and an image, limits and processors of its own, so that the agent stays
// small. It does what the agent of its pod asks, and decides nothing.
//
// The socket lies in a volume of the pod. A connection carries one request and its answer, a line of JSON each. The
// snapshot's file comes along as a descriptor: both containers may run as different users, and the uploader sees no
// folder of the worker.
package uploader
