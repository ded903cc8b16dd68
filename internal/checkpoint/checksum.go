package checkpoint

import (
	"encoding/binary"
	"errors"
	"hash"
	"hash/crc32"
	"io"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// A checksum is the CRC-32C of the CRC-32Cs, big-endian, of all blocks of a file. That is as good as the
// CRC-32C of the file, and the blocks can be read by several processors at once: the training stands still
// while a snapshot is taken over.
const (
	// blockBytes is the size of all blocks but the last.
	blockBytes = 1 << 20
	// maxReaders is how many processors read a file: the programs need the others.
	maxReaders = 4
)

// castagnoli is computed by the processor where it can.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errCut says that a file is shorter than it was.
var errCut = errors.New("the file was cut while it was read")

// checksumOf reads size bytes of a file.
func checksumOf(file io.ReaderAt, size int64) (uint32, error) {
	blocks := make([]uint32, (size+blockBytes-1)/blockBytes)
	var next atomic.Int64
	var readers errgroup.Group
	for range min(maxReaders, runtime.GOMAXPROCS(0), len(blocks)) {
		readers.Go(func() error {
			buffer := make([]byte, bufferBytes)
			for i := next.Add(1) - 1; i < int64(len(blocks)); i = next.Add(1) - 1 {
				start := i * blockBytes
				want := min(blockBytes, size-start)
				sum := crc32.New(castagnoli)
				n, err := io.CopyBuffer(sum, io.NewSectionReader(file, start, want), buffer)
				if err != nil {
					return err
				}
				if n < want {
					return errCut
				}
				blocks[i] = sum.Sum32()
			}
			return nil
		})
	}
	if err := readers.Wait(); err != nil {
		return 0, err
	}
	all := crc32.New(castagnoli)
	for _, block := range blocks {
		writeSum(all, block)
	}
	return all.Sum32(), nil
}

// checksum is that of what is written to it, in any pieces.
type checksum struct {
	all, block hash.Hash32
	// inBlock is how many bytes of the present block there are.
	inBlock int
}

func newChecksum() *checksum {
	return &checksum{all: crc32.New(castagnoli), block: crc32.New(castagnoli)}
}

// Write implements io.Writer. It never fails.
func (c *checksum) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		piece := p[:min(len(p), blockBytes-c.inBlock)]
		_, _ = c.block.Write(piece)
		if c.inBlock += len(piece); c.inBlock == blockBytes {
			c.endBlock()
		}
		p = p[len(piece):]
	}
	return n, nil
}

// sum ends the file.
func (c *checksum) sum() uint32 {
	if c.inBlock > 0 {
		c.endBlock()
	}
	return c.all.Sum32()
}

func (c *checksum) endBlock() {
	writeSum(c.all, c.block.Sum32())
	c.block.Reset()
	c.inBlock = 0
}

func writeSum(all hash.Hash32, block uint32) {
	_, _ = all.Write(binary.BigEndian.AppendUint32(nil, block))
}
