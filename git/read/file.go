package read

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Blob is the contents of a file. The caller must close it.
type Blob struct {
	Object
	in *io.LimitedReader
	b  *batch
	r  Repo
}

// Read reads contents. It returns io.ErrUnexpectedEOF if git ends too early.
func (b *Blob) Read(p []byte) (int, error) {
	n, err := b.in.Read(p)
	if errors.Is(err, io.EOF) && b.in.N > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Close ends git, or returns it to the pool if all contents were read.
func (b *Blob) Close() error {
	if b.in.N == 0 {
		_ = b.b.finish() // a git that has failed is not returned to the pool
	}
	b.r.release(b.b)
	return nil
}

// Blob returns the contents of a blob.
func (r Repo) Blob(ctx context.Context, id string) (blob *Blob, err error) {
	err = r.use(ctx, func(b *batch) (bool, error) {
		blob, err = r.openBlob(b, id)
		return err == nil, err
	})
	return blob, err
}

// openBlob returns the contents of the blob that a name stands for. Blob.Close releases b.
func (r Repo) openBlob(b *batch, name string) (*Blob, error) {
	o, err := b.info(name)
	if err == nil && o.Type != "blob" {
		err = &TypeError{o.ID, "blob", o.Type}
	}
	if err == nil {
		o, err = b.contents(o.ID)
	}
	if err != nil {
		return nil, err
	}
	return &Blob{o, &io.LimitedReader{R: b.out, N: o.Size}, b, r}, nil
}

// File returns the contents of a file in a commit. It returns ErrNotFound if the commit or the path does not exist, or
// is no file. Of a symbolic link it returns the target.
func (r Repo) File(ctx context.Context, commit, path string) (blob *Blob, err error) {
	if !validPath(path) {
		return nil, fmt.Errorf("read file %q: %w", path, ErrNotFound)
	}
	err = r.use(ctx, func(b *batch) (bool, error) {
		id, err := r.resolve(b, commit)
		if err == nil {
			blob, err = r.openBlob(b, id+":"+path)
		}
		return err == nil, err
	})
	return blob, err
}

// validPath reports whether path can be a path in a tree.
func validPath(path string) bool {
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return !strings.Contains(path, "\x00")
}
