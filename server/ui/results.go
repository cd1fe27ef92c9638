package ui

import (
	"context"

	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/session/cacheentry"
)

const (
	// testKey is the beginning of the key of the cache entry with the test results of a tree; the id of the tree follows.
	testKey   = "test/"
	maxResult = 1 << 20 // bytes of test results that are read
)

// testResult is the cache entry with the test results of a proposal. Anyone who may push to the repository can write it.
type testResult struct {
	Key     string // key of the entry, whether or not there is one
	Known   bool   // there is an entry
	First   string // first line of the value
	Size    string
	Actor   string
	Session string
	Note    string // why First is missing
}

// readResults reads the test results of all sides: the cache entries with the keys test/TREE.
func (c *comparison) readResults(ctx context.Context) error {
	var names []string
	var of []*proposal
	for _, s := range c.sides {
		s.result.Key = testKey + s.tree
		if commit := c.refs[cacheentry.Ref(s.result.Key)]; commit != "" {
			names, of = append(names, commit, commit+":"+cacheentry.InfoFile), append(of, s)
		}
	}
	values, now := make([]string, len(of)), c.u.o.Now()
	entries := make([]cacheentry.Entry, len(of))
	err := c.g.Contents(ctx, names, maxCommit, func(i int, content gitread.Content) {
		s := of[i/2]
		if i%2 == 0 {
			values[i/2] = valueOf(content)
			return
		}
		entry, err := cacheentry.Parse(cacheentry.Ref(s.result.Key), content.Bytes)
		if s.result.Known = err != nil || !entry.Expired(now); err != nil {
			s.result.Note = "The cache entry is damaged."
			return
		}
		entries[i/2] = entry
		s.result.Size, s.result.Actor, s.result.Session = size(entry.Size), clip(entry.Actor, 80), clip(entry.Session, 80)
	})
	if err != nil {
		return err
	}
	return c.g.Contents(ctx, values, maxResult, func(i int, content gitread.Content) {
		switch r := &of[i].result; {
		case r.Note != "" || !r.Known:
		case content.ID != "" && content.Bytes == nil:
			r.Note = "The value is too large for this page."
		case entries[i].Verify(content.Bytes) != nil:
			r.Note = "The cache entry is damaged."
		case binary(content.Bytes):
			r.Note = "The value is binary."
		default:
			r.First = line(string(content.Bytes), 200)
		}
	})
}

// valueOf returns the name of the value of a cache entry from the commit of its description.
func valueOf(c gitread.Content) string {
	info, ok := infoOf(c)
	if !ok || len(info.Parents) != 1 {
		return ""
	}
	return info.Parents[0].String() + ":" + cacheentry.ValueFile
}
