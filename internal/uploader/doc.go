// Package uploader is what runs beside the agent where a job has a storage: it makes snapshots durable and brings
// them back. It has the storage's credentials, which the training program in the other container must not have, and
// an image, limits and processors of its own, so that the agent stays small.
//
// It does what the agent of its pod asks, over a socket in a volume of the pod, and decides nothing.
package uploader
