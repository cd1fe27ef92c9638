package read

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Entry is an entry of a tree, in the form of the API.
type Entry struct {
	Name string `json:"name"`
	Mode string `json:"mode"` // octal, without leading zero
	Hash string `json:"hash"`
	Type string `json:"type"` // "blob", "exec", "symlink", "gitlink" or "tree"
}

// maxTree is the maximum size of a tree object in bytes.
const maxTree = 64 << 20

// Stat returns what a path in a commit is; "" is the path of the root. It returns ErrNotFound if the commit or the path
// does not exist.
func (r Repo) Stat(ctx context.Context, commit, path string) (o Object, err error) {
	if path != "" && !validPath(path) {
		return Object{}, fmt.Errorf("find path %q: %w", path, ErrNotFound)
	}
	err = r.use(ctx, func(b *batch) (bool, error) {
		id, err := r.resolve(b, commit)
		switch {
		case err != nil:
		case path == "":
			o, err = b.info(id + "^{tree}")
		default:
			o, err = b.info(id + ":" + path)
		}
		return false, err
	})
	return o, err
}

// Entries calls do with each entry of a tree, until do returns false. It keeps none of them, because a directory can
// have millions.
func (r Repo) Entries(ctx context.Context, id string, do func(Entry) (more bool)) error {
	begun := false // then another process must not begin again
	err := r.use(ctx, func(b *batch) (bool, error) {
		if begun {
			return false, fmt.Errorf("read tree %s: %w", id, io.ErrUnexpectedEOF)
		}
		return false, b.entries(id, func(e Entry) bool {
			begun = true
			return do(e)
		})
	})
	return err
}

// Lacks reports whether a commit or tree may have a path whose object, or a directory above it, is missing in the git
// directory.
func (r Repo) Lacks(ctx context.Context, commit, name string) (bool, error) {
	o, err := r.Stat(ctx, commit, "")
	for part := range strings.SplitSeq(name, "/") {
		next := ""
		if err == nil {
			err = r.Entries(ctx, o.ID, func(e Entry) bool {
				if e.Name == part {
					next = e.Hash
				}
				return next == ""
			})
		}
		if errors.Is(err, ErrNotFound) {
			var other *TypeError // a file has the name of the directory
			return !errors.As(err, &other), nil
		}
		if err != nil {
			return false, err
		}
		if next == "" {
			return false, nil
		}
		o.ID = next
	}
	_, err = r.info(ctx, o.ID)
	if errors.Is(err, ErrNotFound) {
		return true, nil
	}
	return false, err
}

func (b *batch) entries(id string, do func(Entry) bool) error {
	o, err := b.info(id)
	switch {
	case err != nil:
		return err
	case o.Type != "tree":
		return &TypeError{id, "tree", o.Type}
	case o.Size > maxTree:
		return fmt.Errorf("read tree %s: it has %d bytes, limit is %d", id, o.Size, maxTree)
	}
	if o, err = b.contents(id); err != nil {
		return err
	}
	in := &io.LimitedReader{R: b.out, N: o.Size}
	err = parseTree(in, len(o.ID)/2, do)
	switch {
	case errors.Is(err, errTree):
		return fmt.Errorf("parse tree %s: %w", id, err)
	case err != nil:
		return b.failed(err)
	case in.N > maxRest: // git is killed, because it would take longer to read the rest
		return nil
	}
	if _, err := b.out.Discard(int(in.N)); err != nil {
		return b.failed(err)
	}
	return b.finish()
}

const (
	maxName = 1 << 20 // bytes of a name; no file system has longer ones
	maxRest = 1 << 20 // bytes of a tree that are read although nobody needs them
)

// errTree means that the contents of a tree are invalid.
var errTree = errors.New("invalid entry")

// parseTree parses the contents of a tree object. idSize is the number of bytes of an id. It ends early when do returns
// false.
func parseTree(contents *io.LimitedReader, idSize int, do func(Entry) bool) error {
	in := bufio.NewReaderSize(contents, 32<<10)
	id := make([]byte, idSize)
	for {
		if _, err := in.Peek(1); err == io.EOF && contents.N == 0 {
			return nil
		}
		mode, err := field(in, ' ')
		if err != nil {
			return cutOff(err, contents)
		}
		name, err := field(in, 0)
		if err != nil {
			return cutOff(err, contents)
		}
		if _, err := io.ReadFull(in, id); err != nil {
			return cutOff(err, contents)
		}
		if !do(Entry{name, mode, hex.EncodeToString(id), entryType(mode)}) {
			return nil
		}
	}
}

// cutOff returns errTree for the error of a read that has reached the end of the contents.
func cutOff(err error, contents *io.LimitedReader) error {
	if contents.N == 0 {
		return errTree
	}
	return err
}

// field reads up to the byte end.
func field(in *bufio.Reader, end byte) (string, error) {
	var text []byte
	for {
		part, err := in.ReadSlice(end)
		if err != nil && err != bufio.ErrBufferFull {
			return "", err
		}
		if text = append(text, part...); len(text) > maxName {
			return "", errTree
		}
		if err == nil {
			return string(text[:len(text)-1]), nil
		}
	}
}

func entryType(mode string) string {
	switch mode {
	case "40000":
		return "tree"
	case "100755":
		return "exec"
	case "120000":
		return "symlink"
	case "160000":
		return "gitlink"
	}
	return "blob"
}
