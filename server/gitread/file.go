package gitread

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
	in io.Reader
	b  *batch
}

// Read reads contents. It returns io.ErrUnexpectedEOF if git ends too early.
func (b *Blob) Read(p []byte) (int, error) {
	n, err := b.in.Read(p)
	if errors.Is(err, io.EOF) && b.in.(*io.LimitedReader).N > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Close ends git.
func (b *Blob) Close() error {
	b.b.close()
	return nil
}

// Blob returns the contents of a blob.
func (r Repo) Blob(ctx context.Context, id string) (*Blob, error) {
	b, err := r.batch(ctx)
	if err != nil {
		return nil, err
	}
	return openBlob(b, id)
}

// openBlob returns the contents of the blob that a name stands for, and takes over b.
func openBlob(b *batch, name string) (*Blob, error) {
	o, err := b.info(name)
	if err == nil && o.Type != "blob" {
		err = &TypeError{o.ID, "blob", o.Type}
	}
	if err == nil {
		o, err = b.contents(o.ID)
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return &Blob{o, &io.LimitedReader{R: b.out, N: o.Size}, b}, nil
}

// File returns the contents of a file in a commit. It returns ErrNotFound if the commit or the path does not exist, or is no file.
// Of a symbolic link it returns the target.
func (r Repo) File(ctx context.Context, commit, path string) (*Blob, error) {
	if !validPath(path) {
		return nil, fmt.Errorf("read file %q: %w", path, ErrNotFound)
	}
	b, err := r.batch(ctx)
	if err != nil {
		return nil, err
	}
	id, err := r.resolve(b, commit)
	if err != nil {
		b.close()
		return nil, err
	}
	return openBlob(b, id+":"+path)
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
