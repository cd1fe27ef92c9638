package replica

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/artifactfs/artifactfs/git/object"
)

// ErrDamaged means that a file of a pack does not have the contents that its checksums state.
var ErrDamaged = errors.New("pack is damaged")

// extensions are the extensions of the pack files that replicas have. Each of these files ends with a checksum of the
// preceding bytes (see gitformat-pack(5)).
var extensions = []string{".pack", ".idx", ".rev", ".bitmap"}

// trailer returns the last n bytes of a file.
func trailer(f *os.File, n int) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < int64(n) {
		return nil, fmt.Errorf("%w: %s has only %d bytes", ErrDamaged, f.Name(), info.Size())
	}
	b := make([]byte, n)
	_, err = f.ReadAt(b, info.Size()-int64(n))
	return b, err
}

// checkIndex returns ErrDamaged if the pack does not end with the hash in its name, or if the index belongs to another
// pack. It reads only the ends of the files.
func checkIndex(format object.Format, pack, index, name string) error {
	want, err := hex.DecodeString(name)
	if err != nil {
		return err
	}
	p, err := os.Open(pack)
	if err != nil {
		return err
	}
	defer p.Close()
	x, err := os.Open(index)
	if err != nil {
		return err
	}
	defer x.Close()
	n := format.Size()
	end, err := trailer(p, n)
	if err != nil {
		return err
	}
	if !bytes.Equal(end, want) {
		return fmt.Errorf("%w: %s ends with another hash than its name", ErrDamaged, pack)
	}
	if end, err = trailer(x, 2*n); err != nil {
		return err
	}
	if !bytes.Equal(end[:n], want) {
		return fmt.Errorf("%w: %s belongs to another pack", ErrDamaged, index)
	}
	return nil
}

// checkContents returns ErrDamaged if a file does not end with the hash of its contents. It detects accidental changes.
// Git itself detects attacks on SHA-1 when it receives a pack.
func checkContents(format object.Format, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	n := format.Size()
	end, err := trailer(f, n)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	sum := sha1.New()
	if format == object.SHA256 {
		sum = sha256.New()
	}
	if _, err := io.CopyBuffer(sum, io.NewSectionReader(f, 0, info.Size()-int64(n)), make([]byte, 256<<10)); err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), end) {
		return fmt.Errorf("%w: contents of %s do not match the hash at the end", ErrDamaged, path)
	}
	return nil
}

// countObjects returns the number of objects that the header of a pack states.
func countObjects(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var header [12]byte
	if _, err := f.ReadAt(header[:], 0); err != nil || string(header[:4]) != "PACK" {
		return 0, fmt.Errorf("%w: %s does not begin with the header of a pack", ErrDamaged, path)
	}
	return int64(binary.BigEndian.Uint32(header[8:])), nil
}

// transfers is the number of files that one request transfers at the same time.
const transfers = 8

// parallel calls the function do with each number from 0 to n-1, in at most transfers concurrent calls. After the first
// error it starts no further calls, and returns this error.
func parallel(n int, do func(i int) error) error {
	g, ctx := errgroup.WithContext(context.Background())
	g.SetLimit(transfers)
	for i := range n {
		g.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			return do(i)
		})
	}
	return g.Wait()
}
