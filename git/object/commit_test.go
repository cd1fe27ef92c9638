package object

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestParseCommit parses commits and tags that were written by git.
func TestParseCommit(t *testing.T) {
	for _, f := range formats {
		r := newRepo(t, f)
		tree := r.id(nil, "mktree")
		first := r.id([]byte("first\n"), "commit-tree", tree.String())
		other := r.id([]byte("tree in a message\n\ntree x\nparent y\n"), "commit-tree", tree.String())
		merge := r.id(nil, "commit-tree", tree.String(), "-p", first.String(), "-p", other.String())
		for id, parents := range map[ID][]ID{first: nil, other: nil, merge: {first, other}} {
			c, err := ParseCommit(f, []byte(r.git(nil, "cat-file", "commit", id.String())))
			if err != nil || c.Tree != tree || !slices.Equal(c.Parents, parents) ||
				!c.Committed.Equal(time.Unix(1700000001, 0)) {
				t.Errorf("parse commit %s: got %+v, %v", id, c, err)
			}
		}
		for target, typ := range map[ID]Type{first: Commit, tree: Tree,
			r.id([]byte("x"), "hash-object", "-w", "--stdin"): Blob} {
			r.git(nil, "tag", "-f", "-m", "t", "v1", target.String())
			tag := r.id(nil, "rev-parse", "v1")
			got, gotType, err := ParseTagTarget(f, []byte(r.git(nil, "cat-file", "tag", tag.String())))
			if err != nil || got != target || gotType != typ {
				t.Errorf("tag of %s %s: got %s %s, %v", typ, target, gotType, got, err)
			}
			r.git(nil, "tag", "-f", "-m", "t", "v2", tag.String())
			if got, gotType, err := ParseTagTarget(f, []byte(r.git(nil, "cat-file", "tag", "v2"))); err != nil || got != tag ||
				gotType != Tag {
				t.Errorf("tag of a tag: got %s %s, %v", gotType, got, err)
			}
		}
	}
}

// commit returns an encoded commit whose last headers are the given lines.
func commit(lines ...string) []byte {
	return []byte("tree " + strings.Repeat("1", 40) + "\n" + strings.Join(lines, "\n") + "\n\nmessage\n")
}

func TestParseCommitDates(t *testing.T) {
	for ident, want := range map[string]int64{
		"A <a@example.org> 1700000000 +0000":     1700000000,
		"A <a@example.org> 1700000000 -1200":     1700000000,
		"A > B <a@example.org> 12 +0000":         12,
		"<> 0 +0000":                             0,
		"A <a@example.org>":                      0,
		"A <a@example.org> never":                0,
		"A <a@example.org> -5 +0000":             0,
		"A <a@example.org> 99999999999999999999": 0,
		"A <a@example.org> 9223372036854775807":  0,
		"A 1700000000 +0000":                     0,
		"":                                       0,
	} {
		c, err := ParseCommit(SHA1, commit("author A <a@example.org> 1 +0000", "committer "+ident))
		if err != nil || c.Committed.Unix() != want {
			t.Errorf("committer %q: got %v, %v, want %d", ident, c.Committed, err, want)
		}
	}
}

func TestParseCommitRefuses(t *testing.T) {
	who := "A <a@example.org> 1 +0000"
	id, long := strings.Repeat("2", 40), strings.Repeat("2", 64)
	for name, content := range map[string][]byte{
		"nothing":        nil,
		"no tree":        []byte("author " + who + "\ncommitter " + who + "\n\n"),
		"tree second":    []byte("author " + who + "\ntree " + id + "\ncommitter " + who + "\n\n"),
		"two trees":      commit("tree "+id, "committer "+who),
		"no committer":   commit("author " + who),
		"in the message": commit("author "+who, "", "committer "+who),
		"parent":         commit("parent x", "committer "+who),
		"short parent":   commit("parent "+id[1:], "committer "+who),
		"other format":   commit("parent "+long, "committer "+who),
		"cut":            []byte("tree " + id),
		"blob":           []byte("#!/bin/sh\n"),
	} {
		if c, err := ParseCommit(SHA1, content); err == nil {
			t.Errorf("parse a commit of invalid contents (%s): got %+v, want an error", name, c)
		}
	}
	c, err := ParseCommit(SHA1, commit("parent "+id, "author "+who, "committer "+who, "gpgsig x", " tree "+id,
		" parent "+id, "mergetag object "+id))
	if err != nil || len(c.Parents) != 1 {
		t.Errorf("a signed commit: got %+v, %v", c, err)
	}
	for name, content := range map[string]string{
		"nothing":      "",
		"no type":      "object " + id + "\n",
		"other order":  "type commit\nobject " + id + "\n",
		"unknown type": "object " + id + "\ntype fork\n",
		"bad id":       "object " + id[1:] + "\ntype commit\n",
		"other format": "object " + long + "\ntype commit\n",
	} {
		if id, typ, err := ParseTagTarget(SHA1, []byte(content)); err == nil {
			t.Errorf("invalid tag (%s): got %s %s, want an error", name, typ, id)
		}
	}
}

func FuzzParseCommit(f *testing.F) {
	f.Add(commit("parent "+strings.Repeat("2", 40), "author A <a> 1 +0000", "committer A <a> 1700000000 +0000"))
	f.Add([]byte("tree " + strings.Repeat("1", 64) + "\ncommitter > 9\n\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, format := range formats {
			c, err := ParseCommit(format, content)
			if err != nil {
				continue
			}
			head, _, _ := bytes.Cut(content, []byte("\n\n"))
			want := fmt.Sprintf("tree %s", c.Tree)
			for _, p := range c.Parents {
				if !bytes.Contains(head, fmt.Appendf(nil, "\nparent %s", p)) {
					t.Fatalf("parent %s is not in the text of the commit", p)
				}
			}
			if !bytes.HasPrefix(content, []byte(want)) || c.Tree.Format() != format || c.Committed.Unix() < 0 {
				t.Fatalf("parsed commit %+v does not agree with its text", c)
			}
		}
	})
}

func FuzzParseTagTarget(f *testing.F) {
	f.Add([]byte("object " + strings.Repeat("1", 40) + "\ntype commit\ntag v1\n"))
	f.Add([]byte("object " + strings.Repeat("1", 64) + "\ntype tag"))
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, format := range formats {
			id, typ, err := ParseTagTarget(format, content)
			if err == nil && !bytes.HasPrefix(content, fmt.Appendf(nil, "object %s\ntype %s", id, typ)) {
				t.Fatalf("got the invalid target %s %s of tag %q", typ, id, content)
			}
		}
	})
}
