// Package server is the uploader itself: the only program of a worker that knows a storage.
package server
