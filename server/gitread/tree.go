package gitread

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
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

// Stat returns what a path in a commit is; "" is the path of the root. It returns ErrNotFound if the commit or the path does not exist.
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

// Tree returns the entries of a tree.
func (r Repo) Tree(ctx context.Context, id string) (list []Entry, err error) {
	err = r.use(ctx, func(b *batch) (bool, error) {
		list, err = b.tree(id)
		return false, err
	})
	return list, err
}

// Lacks reports whether a commit or tree may have a path whose object, or a directory above it, is missing in the git directory.
func (r Repo) Lacks(ctx context.Context, commit, name string) (bool, error) {
	o, err := r.Stat(ctx, commit, "")
	for part := range strings.SplitSeq(name, "/") {
		var list []Entry
		if err == nil {
			list, err = r.Tree(ctx, o.ID)
		}
		if errors.Is(err, ErrNotFound) {
			var other *TypeError // a file has the name of the directory
			return !errors.As(err, &other), nil
		}
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(list, func(e Entry) bool { return e.Name == part })
		if i < 0 {
			return false, nil
		}
		o.ID = list[i].Hash
	}
	_, err = r.info(ctx, o.ID)
	if errors.Is(err, ErrNotFound) {
		return true, nil
	}
	return false, err
}

func (b *batch) tree(id string) ([]Entry, error) {
	o, err := b.info(id)
	switch {
	case err != nil:
		return nil, err
	case o.Type != "tree":
		return nil, &TypeError{id, "tree", o.Type}
	case o.Size > maxTree:
		return nil, fmt.Errorf("read tree %s: it has %d bytes, limit is %d", id, o.Size, maxTree)
	}
	if o, err = b.contents(id); err != nil {
		return nil, err
	}
	content := make([]byte, o.Size)
	if _, err := io.ReadFull(b.out, content); err != nil {
		return nil, b.failed(err)
	}
	if err := b.finish(); err != nil {
		return nil, err
	}
	return parseTree(content, len(o.ID)/2)
}

// parseTree parses the contents of a tree object. idSize is the number of bytes of an id.
func parseTree(content []byte, idSize int) ([]Entry, error) {
	list := []Entry{}
	for len(content) > 0 {
		mode, rest, ok := bytes.Cut(content, []byte(" "))
		name, rest, ok2 := bytes.Cut(rest, []byte{0})
		if !ok || !ok2 || len(rest) < idSize {
			return nil, fmt.Errorf("parse tree: entry %d is invalid", len(list))
		}
		list = append(list, Entry{string(name), string(mode), hex.EncodeToString(rest[:idSize]), entryType(string(mode))})
		content = rest[idSize:]
	}
	return list, nil
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
