package thin

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/artifactfs/artifactfs/git/object"
)

// ReadableRef returns the name of the readable branch of a session with a container. Its commits can be read by stock
// git, and contain the changed files of each checkpoint and commit. It is pushed together with the container, and no
// command of artifactfs reads it.
func ReadableRef(name string) string { return "refs/heads/afs/" + name + "/readable" }

// Readable is a new commit of the readable branch, and the way to push it.
type Readable struct {
	Tip object.ID
	// Pack writes a pack of the objects of the branch that the session remote may lack.
	Pack func(ctx context.Context, w io.Writer) error
	// Pushed is called when the session remote has accepted the branch.
	Pushed func()
}

// packHeader is the size of the header of a pack in bytes, which ends with the number of objects.
const packHeader = 12

// joinPacks returns a function that writes the objects of several packs as one pack. Deltas stay valid, because their
// offsets are relative and the entries of each pack stay together.
func joinPacks(f object.Format,
	packs ...func(context.Context, io.Writer) error) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var total uint32
		head := make([]byte, packHeader)
		var inputs []*io.PipeReader
		var ends []chan error
		for _, write := range packs {
			in, out := io.Pipe()
			end := make(chan error, 1)
			go func() {
				err := write(ctx, out)
				out.CloseWithError(err)
				end <- err
			}()
			inputs, ends = append(inputs, in), append(ends, end)
		}
		defer func() {
			for i, in := range inputs {
				in.CloseWithError(io.ErrClosedPipe)
				<-ends[i]
			}
		}()
		for _, in := range inputs {
			if _, err := io.ReadFull(in, head); err != nil {
				return fmt.Errorf("join packs: %w", err)
			}
			total += binary.BigEndian.Uint32(head[8:])
		}
		sum := f.New()
		to := io.MultiWriter(w, sum)
		binary.BigEndian.PutUint32(head[8:], total)
		if _, err := to.Write(head); err != nil {
			return err
		}
		for _, in := range inputs {
			if err := copyBody(to, in, sum); err != nil {
				return fmt.Errorf("join packs: %w", err)
			}
		}
		_, err := w.Write(sum.Sum(nil))
		return err
	}
}

// copyBody copies the rest of a pack from r to w, without the checksum at its end.
func copyBody(w io.Writer, r io.Reader, sum hash.Hash) error {
	var kept bytes.Buffer
	chunk := make([]byte, 32<<10)
	for {
		n, err := r.Read(chunk)
		kept.Write(chunk[:n])
		if extra := kept.Len() - sum.Size(); extra > 0 {
			if _, err := w.Write(kept.Next(extra)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
