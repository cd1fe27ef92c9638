package session_test

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/session"
)

// shelf is an object store in memory.
type shelf map[object.ID]struct {
	t       object.Type
	content []byte
}

func (s shelf) Get(id object.ID, limit int64) (object.Type, []byte, error) {
	o, ok := s[id]
	if !ok {
		return 0, nil, odb.ErrNotFound
	}
	if int64(len(o.content)) > limit {
		return 0, nil, odb.ErrTooLarge
	}
	return o.t, o.content, nil
}

func (s shelf) put(f object.Format, t object.Type, content []byte) object.ID {
	id, err := object.Hash(f, t, content)
	if err != nil {
		panic(err)
	}
	s[id] = struct {
		t       object.Type
		content []byte
	}{t, content}
	return id
}

func fullState(f object.Format) session.State {
	id := func(n byte) object.ID {
		got, err := object.FromBytes(bytes.Repeat([]byte{n}, f.Size()))
		if err != nil {
			panic(err)
		}
		return got
	}
	tag := []byte("object " + id(2).String() + "\ntype commit\ntag v1\ntagger a <a> 1 +0000\n\none\n")
	tagID, err := object.Hash(f, object.Tag, tag)
	if err != nil {
		panic(err)
	}
	return session.State{
		Tags:   map[object.ID][]byte{tagID: tag},
		Branch: "refs/heads/topic/ü", Head: id(1),
		Refs:    []packedrefs.Ref{{Name: "refs/heads/main", ID: id(2)}, {Name: "refs/stash", ID: id(3)}},
		Remote:  []packedrefs.Ref{{Name: "refs/remotes/origin/main", ID: id(4)}},
		Stashes: []session.Stash{{Commit: id(3), Message: "WIP on main: two"}, {Commit: id(5), Message: ""}},
		Index: session.Index{Tree: id(6), Special: []session.IndexEntry{
			{Path: "a\xff b", Mode: object.ModeFile, ID: id(7), Stage: 1},
			{Path: "a\xff b", Mode: object.ModeExec, ID: id(8), Stage: 2},
			{Path: "new", Mode: object.ModeFile, IntentToAdd: true},
			{Path: "sparse", Mode: object.ModeSymlink, ID: id(9), SkipWorktree: true, AssumeValid: true},
			{Path: "sub", Mode: object.ModeGitlink, ID: id(10), Stage: 3},
			// no directory can show it
			{Path: "x/" + strings.Repeat("long", 90), Mode: object.ModeFile, ID: id(11), SkipWorktree: true},
		}},
		Files: map[string]session.File{"MERGE_HEAD": {Content: []byte("x\n")},
			"rebase-merge/git-rebase-todo": {Content: []byte("pick\n")}, "rebase-merge/run": {Content: []byte{}, Exec: true}},
		Left: []session.LeftOut{{Path: "build/", Why: session.Ignored},
			{Path: "large", Why: session.TooLarge, Size: 1 << 40}},
	}
}

func TestStateComesBack(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		for name, s := range map[string]session.State{"full": fullState(f), "empty": {},
			"unborn": {Branch: "refs/heads/main"}} {
			parents := []object.ID{}
			if name == "full" {
				parents = []object.ID{s.Head, s.Stashes[0].Commit, s.Head}
			}
			id, objects, err := session.EncodeState(f, s, parents, time.Unix(1_700_000_000, 0))
			if err != nil {
				t.Fatal(err)
			}
			all := shelf{}
			for _, o := range objects {
				r, err := o.Open()
				if err != nil {
					t.Fatal(err)
				}
				var b bytes.Buffer
				b.ReadFrom(r)
				if all.put(f, o.Type, b.Bytes()) != o.ID {
					t.Errorf("%s: an object does not have the ID that EncodeState returned for it", name)
				}
			}
			got, err := session.ReadState(all, f, id)
			if err != nil || !reflect.DeepEqual(got, s) {
				t.Errorf("%s: ReadState: got %+v, %v\nwant %+v", name, got, err, s)
			}
			if name == "full" && bytes.Count(all[id].content, []byte("\nparent ")) != 2 {
				t.Errorf("commit of the state: got\n%s\nwant 2 parents", all[id].content)
			}
		}
	}
}

func TestStateRefusesPathsOutside(t *testing.T) {
	for _, path := range []string{"../x", "/etc/passwd", "a//b", ".git/config", "a/../b", ""} {
		s := session.State{Files: map[string]session.File{path: {}}}
		if _, _, err := session.EncodeState(object.SHA1, s, nil, time.Now()); err == nil {
			t.Errorf("EncodeState with a file at %q: got no error", path)
		}
	}
}

func TestCheckpointComesBack(t *testing.T) {
	s := fullState(object.SHA1)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, p := range []session.Checkpoint{
		{ID: session.NewCheckpointID(at), Tree: s.Head, State: s.Index.Tree, Session: "s", Lane: "main", Segment: 3,
			Reason: session.Idle, Time: at},
		{ID: session.NewCheckpointID(at), Tree: s.Head, State: s.Index.Tree, Session: "a-b", Lane: "main-host", Segment: 1,
			Reason: session.Manual, Time: at,
			Message: "subject\n\nbody\n\nAfs-Checkpoint: not this\nAfs-Session: other", Head: s.Head, Branch: "refs/heads/x",
			Prev: session.NewCheckpointID(at), Base: s.Head, Changed: 4, Bytes: 5, Left: 6},
	} {
		for _, parent := range []object.ID{{}, s.Stashes[1].Commit} {
			content := p.Encode(parent)
			id, err := object.Hash(object.SHA1, object.Commit, content)
			if err != nil {
				t.Fatal(err)
			}
			p.Commit = id
			got, err := session.ParseCheckpoint(object.SHA1, id, content)
			if err != nil || got != p {
				t.Errorf("ParseCheckpoint: got %+v, %v\nwant %+v", got, err, p)
			}
			if got, err := session.CheckpointParent(object.SHA1, content); err != nil || got != parent {
				t.Errorf("CheckpointParent: got %s, %v, want %s", got, err, parent)
			}
		}
	}
	plain := "tree " + s.Head.String() + "\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\nsubject\n"
	if _, err := session.ParseCheckpoint(object.SHA1, s.Head, []byte(plain)); !errors.Is(err, session.ErrNotCheckpoint) {
		t.Errorf("ParseCheckpoint of an ordinary commit: got %v, want ErrNotCheckpoint", err)
	}
}

func TestCheckpointIDs(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_123)
	last := session.CheckpointID("")
	for i := range 10_000 {
		id := session.NewCheckpointID(at.Add(-time.Duration(i) * time.Second)) // the clock may be set back
		if id <= last || len(id) != 26 {
			t.Fatalf("new ID %s does not sort after the previous ID %s", id, last)
		}
		last = id
	}
	later := session.CheckpointID("7ZZZZZZZ00" + strings.Repeat("0", 16))
	if id := session.NewCheckpointIDAfter(at, later); id <= later {
		t.Errorf("new ID %s does not sort after the given ID %s", id, later)
	}
	if got, err := session.ParseCheckpointID(strings.ToLower(string(last))); err != nil || got != last {
		t.Errorf("ParseCheckpointID(%s) in lower case: got %s, %v", last, got, err)
	}
	if got := session.CheckpointID("01ARYZ6S41TSV4RRFFQ69G5FAV").Time().UnixMilli(); got != 1469918176385 {
		t.Errorf("time of the example in the ULID specification: got %d, want 1469918176385", got)
	}
	for _, bad := range []string{"", "01ARYZ6S41TSV4RRFFQ69G5FA", "81ARYZ6S41TSV4RRFFQ69G5FAV",
		"01ARYZ6S41TSV4RRFFQ69G5FAU"} {
		if _, err := session.ParseCheckpointID(bad); !errors.Is(err, session.ErrCheckpointID) {
			t.Errorf("ParseCheckpointID(%q): got %v, want ErrCheckpointID", bad, err)
		}
	}
}

func FuzzParseCheckpoint(f *testing.F) {
	s := fullState(object.SHA1)
	p := session.Checkpoint{ID: session.NewCheckpointID(time.Unix(1, 0)), Tree: s.Head, State: s.Index.Tree, Session: "s",
		Lane: "main", Segment: 3, Reason: session.Idle, Time: time.Unix(1, 0).UTC(), Message: "m"}
	f.Add(p.Encode(object.ID{}))
	f.Add(p.Encode(s.Head))
	f.Fuzz(func(t *testing.T, content []byte) {
		p, err := session.ParseCheckpoint(object.SHA1, s.Head, content)
		if err != nil {
			return
		}
		parent, err := session.CheckpointParent(object.SHA1, content)
		if err != nil {
			t.Fatal(err)
		}
		// A checkpoint that was read, encoded and read again is the same.
		again, err := session.ParseCheckpoint(object.SHA1, s.Head, p.Encode(parent))
		p.Message, again.Message = strings.TrimSpace(p.Message), strings.TrimSpace(again.Message)
		if err != nil || again != p {
			t.Errorf("checkpoint %q: first read as %+v, after encoding as %+v (error %v)", content, p, again, err)
		}
	})
}

func FuzzReadState(f *testing.F) {
	s := fullState(object.SHA1)
	for _, name := range []string{"head", "special", "refs", "stashes"} {
		f.Add(name, []byte("ref: refs/heads/main\n"+s.Head.String()+"\n"))
		f.Add(name, []byte(s.Head.String()+" refs/heads/main\n"))
		f.Add(name, []byte(`{"path":"YQ==","mode":33188,"id":"`+s.Head.String()+`","stage":2}`+"\n"))
	}
	f.Fuzz(func(t *testing.T, name string, text []byte) {
		if name == "" || strings.ContainsAny(name, "/\x00") {
			return
		}
		all := shelf{}
		blob := all.put(object.SHA1, object.Blob, text)
		tree := all.put(object.SHA1, object.Tree,
			session.EncodeTree([]object.TreeEntry{{Name: name, Mode: object.ModeFile, ID: blob}}))
		commit := all.put(object.SHA1, object.Commit,
			[]byte("tree "+tree.String()+"\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\nstate\n"))
		got, err := session.ReadState(all, object.SHA1, commit)
		if err != nil {
			return
		}
		id, objects, err := session.EncodeState(object.SHA1, got, nil, time.Unix(1, 0))
		if err != nil {
			t.Fatalf("encode the state that was read from %q: %v", text, err)
		}
		for _, o := range objects {
			r, _ := o.Open()
			var b bytes.Buffer
			b.ReadFrom(r)
			all.put(object.SHA1, o.Type, b.Bytes())
		}
		again, err := session.ReadState(all, object.SHA1, id)
		if err != nil || !reflect.DeepEqual(got, again) {
			t.Errorf("state %q: first read as %+v, after encoding as %+v (error %v)", text, got, again, err)
		}
	})
}

// TestPacksAreJoined checks that many small packs are joined to few packs, and that no object is lost.
func TestPacksAreJoined(t *testing.T) {
	dir := t.TempDir() + "/s.git"
	r := open(t, dir, session.RepoOptions{Session: "s"})
	var ids []object.ID
	for i := range 200 {
		o := outgoing(t, object.SHA1, object.Blob, strings.Repeat("x", i))
		ids = append(ids, o.ID)
		if err := r.Write(context.Background(), []odb.Outgoing{o}); err != nil {
			t.Fatal(err)
		}
		if i%10 == 0 {
			for j, id := range ids {
				if _, text, err := r.Get(id, 1000); err != nil || len(text) != j || !r.Owned(id) {
					t.Fatalf("after %d packs, read object %d: got %d bytes, %v", i, j, len(text), err)
				}
			}
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = open(t, dir, session.RepoOptions{Session: "s"})
	for i, id := range ids {
		if _, text, err := r.Get(id, 1000); err != nil || len(text) != i {
			t.Errorf("after the repository was opened again, read object %d: got %d bytes, %v", i, len(text), err)
		}
	}
	git(t, dir, "fsck", "--full")
	if s, err := odb.Look(dir+"/objects", object.SHA1); err != nil || s.Packs > 80 {
		t.Errorf("survey of the objects: got %+v, %v, want at most 80 packs", s, err)
	}
}
