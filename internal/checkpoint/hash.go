package checkpoint

import (
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// A Hash is the SHA-256 of the SHA-256s of all blocks of a file, in their order. With the size of the file, which
// says how many blocks there are, that is as good as the SHA-256 of the file, and the blocks can be read by several
// processors at once: the training stands still while a snapshot is taken over.
type Hash [sha256.Size]byte

const (
	// blockBytes is the size of all blocks but the last.
	blockBytes = 1 << 20
	// maxReaders is how many processors read a file: the programs need the others.
	maxReaders = 4
)

// errCut says that a file is shorter than it was.
var errCut = errors.New("the file was cut while it was read")

// HashOf reads size bytes of a file.
func HashOf(file io.ReaderAt, size int64) (Hash, error) {
	blocks, err := blocksOf(file, size)
	return hashOfBlocks(blocks), err
}

// numberOfBlocks is how many blocks so many bytes have.
func numberOfBlocks(size uint64) uint64 { return (size + blockBytes - 1) / blockBytes }

// hashOfBlocks is the hash of a file whose blocks have these.
func hashOfBlocks(blocks []Hash) Hash {
	all := sha256.New()
	for i := range blocks {
		_, _ = all.Write(blocks[i][:])
	}
	return Hash(all.Sum(nil))
}

// sumOf is the hash of one block.
func sumOf(block []byte) Hash { return sha256.Sum256(block) }

// readHashes reads so many hashes, one after another.
func readHashes(from io.Reader, n uint64) ([]Hash, error) {
	var hashes []Hash // grows as they come: the number is what a holder says
	for range n {
		var one Hash
		if _, err := io.ReadFull(from, one[:]); err != nil {
			return nil, err
		}
		hashes = append(hashes, one)
	}
	return hashes, nil
}

// blocksOf reads size bytes of a file for the hashes of their blocks.
func blocksOf(file io.ReaderAt, size int64) ([]Hash, error) {
	blocks := make([]Hash, numberOfBlocks(uint64(size)))
	var next atomic.Int64
	var readers errgroup.Group
	for range min(maxReaders, runtime.GOMAXPROCS(0), len(blocks)) {
		readers.Go(func() error {
			buffer := make([]byte, bufferBytes)
			block := sha256.New()
			for i := next.Add(1) - 1; i < int64(len(blocks)); i = next.Add(1) - 1 {
				start := i * blockBytes
				want := min(blockBytes, size-start)
				block.Reset()
				n, err := io.CopyBuffer(block, io.NewSectionReader(file, start, want), buffer)
				if err != nil {
					return err
				}
				if n < want {
					return errCut
				}
				block.Sum(blocks[i][:0])
			}
			return nil
		})
	}
	return blocks, readers.Wait()
}

// Hasher makes the hash of what is written to it, in any pieces.
type Hasher struct {
	all, block hash.Hash
	// inBlock is how many bytes of the present block there are.
	inBlock int
}

// NewHasher makes one to which nothing was written.
func NewHasher() *Hasher { return &Hasher{all: sha256.New(), block: sha256.New()} }

// Write implements io.Writer. It never fails.
func (h *Hasher) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		piece := p[:min(len(p), blockBytes-h.inBlock)]
		_, _ = h.block.Write(piece)
		if h.inBlock += len(piece); h.inBlock == blockBytes {
			h.endBlock()
		}
		p = p[len(piece):]
	}
	return n, nil
}

// Sum ends the file.
func (h *Hasher) Sum() Hash {
	if h.inBlock > 0 {
		h.endBlock()
	}
	return Hash(h.all.Sum(nil))
}

func (h *Hasher) endBlock() {
	_, _ = h.all.Write(h.block.Sum(nil))
	h.block.Reset()
	h.inBlock = 0
}
