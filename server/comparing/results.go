package comparing

import (
	"bytes"
	"context"

	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/session/cacheentry"
)

const (
	// testKey is the beginning of the key of the cache entry with the test results of a tree; the id of the tree follows.
	testKey   = "test/"
	maxResult = 1 << 20 // bytes of test results that are read
)

// Result is the cache entry with the test results of a proposal. Anyone who may push to the repository can write it, in
// the own name only (package gate).
type Result struct {
	Key     string // key of the entry, whether or not there is one
	Known   bool   // there is an entry
	First   string // first line of the value
	Size    int64  // bytes of the value
	Actor   string
	Session string
	Problem Problem // why First is missing; "": it is not missing
}

// Problem is the reason why the value of a cache entry is not shown.
type Problem string

const (
	Damaged  Problem = "damaged"   // the entry or its value is not valid
	TooLarge Problem = "too_large" // the value is larger than 1 MiB
	Binary   Problem = "binary"    // the value is not text
)

// readResults reads the test results of all sides: the cache entries with the keys test/TREE.
func (c *comparing) readResults(ctx context.Context) error {
	var names []string
	var of []*Side
	for _, s := range c.Sides {
		s.Result.Key = testKey + s.Tree
		if commit := c.Refs[cacheentry.Ref(s.Result.Key)]; commit != "" {
			names, of = append(names, commit, commit+":"+cacheentry.InfoFile), append(of, s)
		}
	}
	values, entries := make([]string, len(of)), make([]cacheentry.Entry, len(of))
	err := c.Git.Contents(ctx, names, maxCommit, func(i int, content read.Content) {
		s := of[i/2]
		if i%2 == 0 {
			values[i/2] = valueOf(content)
			return
		}
		entry, err := cacheentry.Parse(cacheentry.Ref(s.Result.Key), content.Bytes)
		if s.Result.Known = err != nil || !entry.Expired(c.Now); err != nil {
			s.Result.Problem = Damaged
			return
		}
		entries[i/2] = entry
		s.Result.Size, s.Result.Actor, s.Result.Session = entry.Size, entry.Actor, entry.Session
	})
	if err != nil {
		return err
	}
	return c.Git.Contents(ctx, values, maxResult, func(i int, content read.Content) {
		switch r := &of[i].Result; {
		case r.Problem != "" || !r.Known:
		case content.ID != "" && content.Bytes == nil:
			r.Problem = TooLarge
		case entries[i].Verify(content.Bytes) != nil:
			r.Problem = Damaged
		case bytes.IndexByte(content.Bytes, 0) >= 0:
			r.Problem = Binary
		default:
			r.First = firstLine(string(content.Bytes))
		}
	})
}

// valueOf returns the name of the value of a cache entry from the commit of its description.
func valueOf(c read.Content) string {
	info, ok := c.Commit()
	if !ok || len(info.Parents) != 1 {
		return ""
	}
	return info.Parents[0].String() + ":" + cacheentry.ValueFile
}
