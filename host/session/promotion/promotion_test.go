package promotion

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
)

// place is a mounted remote in a directory, whose branch main has the files a and b, and a session that is based on
// this branch.
type place struct {
	*written
	remote      *gittest.Repo
	base        object.ID
	uncommitted []string // paths in which the checkpoint differs from its HEAD commit
}

// lines is the contents of a file that two users can change without a conflict.
const lines = "1\n2\n3\n4\n5\n6\n7\n"

func newPlace(t *testing.T) *place {
	t.Helper()
	t.Parallel()
	remote, err := gittest.New(filepath.Join(t.TempDir(), "r.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]gittest.File{"a": {Data: []byte(lines)}, "b": {Data: []byte("b\n")}}
	base, err := remote.Commit("main", files, "base")
	if err != nil {
		t.Fatal(err)
	}
	repo, err := session.OpenRepo(t.TempDir(), session.RepoOptions{Format: object.SHA1,
		Borrow: []string{filepath.Join(remote.Path, "objects")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { repo.Close() })
	p := &place{remote: remote, base: base}
	config := "[user]\n\tname = Ada Lovelace\n\temail = ada@x\n[gpg]\n\tprogram = /bin/false\n[commit]\n\tgpgsign = true\n"
	p.written = &written{t: t, at: time.Unix(1_700_000_000, 0), Session: &Session{
		Name: "work", Repo: repo, Record: statedir.Record{Ref: "refs/heads/main", Commit: base.String()},
		Request: control.MountRequest{Remote: remote.Path},
		Tree:    func(_ context.Context, id object.ID) ([]object.TreeEntry, error) { return repo.Tree(id) },
		Changes: func(context.Context, object.ID, object.ID) (changes []control.PathChange, err error) {
			for _, path := range p.uncommitted {
				changes = append(changes, control.PathChange{Path: path, OldMode: "100644", NewMode: "100644"})
			}
			return changes, nil
		},
		Provide: func(_ context.Context, ids []object.ID) error { return fmt.Errorf("asked for contents %v", ids) },
		Objects: func() []string { return nil },
		State: func(context.Context, session.Checkpoint) (session.State, error) {
			return session.State{Files: map[string]session.File{"config": {Content: []byte(config)}}}, nil
		},
	}}
	return p
}

// files creates a commit with the given files.
func (p *place) files(message string, files map[string]string, parents ...object.ID) object.ID {
	p.t.Helper()
	var objects []odb.Outgoing
	var entries []object.TreeEntry
	add := func(t object.Type, content []byte) object.ID {
		o, err := session.Outgoing(object.SHA1, t, content)
		if err != nil {
			p.t.Fatal(err)
		}
		objects = append(objects, o)
		return o.ID
	}
	for name, text := range files {
		entries = append(entries, object.TreeEntry{Mode: object.ModeFile, Name: name, ID: add(object.Blob, []byte(text))})
	}
	tree := add(object.Tree, session.EncodeTree(entries))
	p.at = p.at.Add(time.Minute)
	text := "tree " + tree.String() + "\n"
	for _, parent := range parents {
		text += "parent " + parent.String() + "\n"
	}
	who := fmt.Sprintf("Ada <ada@x> %d +0000", p.at.Unix())
	text += "author " + who + "\ncommitter " + who + "\n\n" + message + "\n"
	id := add(object.Commit, []byte(text))
	if err := p.Repo.Write(context.Background(), objects); err != nil {
		p.t.Fatal(err)
	}
	return id
}

// promote promotes a commit, and checks that the scratch repository is removed afterwards.
func (p *place) promote(head object.ID, r control.SessionPromoteRequest) (control.SessionPromoteReply, error) {
	p.t.Helper()
	dir := p.t.TempDir()
	point := session.Checkpoint{ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Head: head}
	reply, err := Promote(p.t.Context(), p.Session, point, r, Options{
		Dir: dir, Open: func(r control.MountRequest) (*thin.Remote, error) {
			at := r.SessionOptions.Remote
			if at == control.RemoteOrigin {
				at = r.Remote
			}
			remote, err := transport.Open(at, transport.Options{})
			if err != nil {
				return nil, err
			}
			return thin.New(remote, "", nil), nil
		}})
	if left, dirErr := os.ReadDir(dir); dirErr != nil || len(left) != 0 {
		p.t.Errorf("files that the promotion has left: %v, %v", left, dirErr)
	}
	return reply, err
}

// refused promotes a commit, and checks that the error contains the given parts and that the branch main is not
// changed.
func (p *place) refused(what string, head object.ID, r control.SessionPromoteRequest, want control.Error) {
	p.t.Helper()
	before := p.git("for-each-ref")
	_, err := p.promote(head, r)
	var got *control.Error
	if !errors.As(err, &got) || got.Code != want.Code || got.Kind != want.Kind ||
		!strings.Contains(got.Cause, want.Cause) || !strings.Contains(got.Hint, want.Hint) {
		p.t.Errorf("%s: got %#v (%v), want %#v", what, got, err, want)
	}
	if after := p.git("for-each-ref"); after != before {
		p.t.Errorf("%s: refs of the remote: got\n%s\nwant unchanged\n%s", what, after, before)
	}
}

// git runs git in the mounted remote.
func (p *place) git(args ...string) string {
	p.t.Helper()
	return gittest.Must(p.t, p.remote.Path, args...)
}

// other commits a file to the branch main of the mounted remote, as another user does.
func (p *place) other(name, text string) object.ID {
	p.t.Helper()
	id, err := p.remote.Commit("main", map[string]gittest.File{name: {Data: []byte(text)}}, "other")
	if err != nil {
		p.t.Fatal(err)
	}
	return id
}

// TestFastForward checks that a fast-forward pushes the commits of the session and nothing else, and that a repetition
// pushes nothing.
func TestFastForward(t *testing.T) {
	p := newPlace(t)
	one := p.files("one", map[string]string{"a": lines, "b": "one\n"}, p.base)
	two := p.files("two", map[string]string{"a": lines, "b": "two\n"}, one)
	secret := p.files("only in the session", map[string]string{"s": "secret"}, two)
	before := p.git("for-each-ref")
	reply, err := p.promote(two, control.SessionPromoteRequest{DryRun: true})
	if err != nil || reply.New != two.String() || p.git("for-each-ref") != before {
		t.Errorf("dry run: got %+v, %v, refs %s, want commit %s and no change", reply, err, p.git("for-each-ref"), two)
	}
	if reply, err = p.promote(two, control.SessionPromoteRequest{}); err != nil {
		t.Fatal(err)
	}
	if now := p.git("rev-parse", "main"); now != two.String() || reply.Old != p.base.String() || reply.New != now ||
		reply.Method != control.PromoteFF || reply.Total != 2 || reply.Objects != 6 || !reply.Mounted {
		t.Errorf("promote %s: got %+v, and the branch at %s", two, reply, now)
	}
	p.git("fsck", "--strict")
	if _, err := gittest.Git(t.Context(), p.remote.Path, "cat-file", "-e", secret.String()); err == nil {
		t.Error("a later commit of the session was sent")
	}
	if reply, err = p.promote(two, control.SessionPromoteRequest{}); err != nil || reply.Method != control.PromoteNone ||
		reply.New != two.String() || reply.Total != 0 {
		t.Errorf("promote again: got %+v, %v, want that the branch has the commits", reply, err)
	}
}

// TestJoinWithOthers checks that squash and merge combine the session with commits of others, with the user of the
// session as the author, and that programs in the session's settings do not run.
func TestJoinWithOthers(t *testing.T) {
	for _, method := range []control.PromoteMethod{control.PromoteSquash, control.PromoteMerge} {
		t.Run(string(method), func(t *testing.T) {
			p := newPlace(t)
			head := p.files("change the end\n\nbody", map[string]string{"a": lines + "8\n", "b": "b\n"}, p.base)
			theirs := p.other("a", "0\n"+lines)
			reply, err := p.promote(head, control.SessionPromoteRequest{Method: method})
			if err != nil {
				t.Fatal(err)
			}
			if got := p.git("show", "main:a"); got+"\n" != "0\n"+lines+"8\n" {
				t.Errorf("merged file: got %q", got)
			}
			parents, subject := theirs.String(), "change the end\n\nbody"
			if method == control.PromoteMerge {
				parents, subject = parents+" "+head.String(), "Merge session work into main\n\n* change the end"
			}
			want := parents + " Ada Lovelace <ada@x> " + subject
			if got := p.git("log", "-1", "--format=%P %an <%ae> %B", "main"); strings.TrimSpace(got) != want {
				t.Errorf("commit of the promotion: got %q, want %q", got, want)
			}
			if reply.New != p.git("rev-parse", "main") || reply.Tree != p.git("rev-parse", "main^{tree}") {
				t.Errorf("reply: got %+v", reply)
			}
			p.git("fsck", "--strict")
		})
	}
}

// TestBranchMovesDuringPromotion checks that a branch that moves after it was read and before the push is read again,
// so that no commit of another user is lost.
func TestBranchMovesDuringPromotion(t *testing.T) {
	for method, refused := range map[control.PromoteMethod]bool{control.PromoteFF: true, control.PromoteSquash: false} {
		t.Run(string(method), func(t *testing.T) {
			p := newPlace(t)
			head := p.files("mine", map[string]string{"a": lines, "b": "mine\n"}, p.base)
			theirs := p.other("theirs", "theirs\n")
			p.git("update-ref", "refs/heads/main", p.base.String())
			// The hook runs once, before git locks the branch.
			hook := fmt.Sprintf("#!/bin/sh\nrm -f hooks/update\nexec git update-ref refs/heads/main %s\n", theirs)
			if err := os.WriteFile(filepath.Join(p.remote.Path, "hooks", "update"), []byte(hook), 0o755); err != nil {
				t.Fatal(err)
			}
			reply, err := p.promote(head, control.SessionPromoteRequest{Method: method})
			var why *control.Error
			if !reply.Retried || errors.As(err, &why) != refused {
				t.Errorf("promote: got %+v, %v, want two attempts", reply, err)
			}
			if want := map[bool]string{true: theirs.String(), false: reply.New}[refused]; p.git("rev-parse", "main") != want {
				t.Errorf("branch: got %s, want %s", p.git("rev-parse", "main"), want)
			}
			if base := p.git("merge-base", "main", theirs.String()); base != theirs.String() {
				t.Errorf("the commit of the other user was lost: the branch has %s of it", base)
			}
			if refused && !strings.Contains(why.Hint, "--merge") {
				t.Errorf("hint: got %q, want the methods that join commits", why.Hint)
			}
		})
	}
}

// TestRefusals checks that requests that cannot be carried out are refused with a hint and change nothing.
func TestRefusals(t *testing.T) {
	p := newPlace(t)
	head := p.files("mine", map[string]string{"a": "mine\n" + lines, "b": "b\n"}, p.base)
	p.refused("a session without a commit", object.ID{}, control.SessionPromoteRequest{},
		control.Error{Code: control.ExitFailed, Kind: control.CodeNotFound, Cause: "no commit", Hint: "git commit"})
	p.uncommitted = []string{"b", "c"}
	p.refused("changes without a commit", head, control.SessionPromoteRequest{},
		control.Error{Code: control.ExitFailed, Kind: control.CodeConflict, Cause: "committed: b, c", Hint: "promote HEAD"})
	if _, err := p.promote(head, control.SessionPromoteRequest{ID: "HEAD", DryRun: true}); err != nil {
		t.Errorf("promote of HEAD beside changes without a commit: got %v, want it accepted", err)
	}
	p.uncommitted = nil
	p.refused("a new branch by squash", head, control.SessionPromoteRequest{Branch: "new", Method: control.PromoteSquash},
		control.Error{Code: control.ExitRemote, Kind: control.CodeNotFound, Cause: "no such branch", Hint: "--ff"})
	p.refused("an invalid branch", head, control.SessionPromoteRequest{Branch: "a..b"},
		control.Error{Code: control.ExitUsage, Cause: "invalid name"})
	p.refused("a pull request into a branch that does not exist", head,
		control.SessionPromoteRequest{Branch: "none", PullRequest: true},
		control.Error{Code: control.ExitRemote, Kind: control.CodeNotFound, Cause: "no branch none"})
	p.git("update-ref", "refs/heads/dir/x", p.base.String())
	p.refused("a branch beside a directory of branches", head, control.SessionPromoteRequest{Branch: "dir"},
		control.Error{Code: control.ExitRemote, Kind: control.CodeConflict, Cause: "dir/x", Hint: "another branch"})
	p.refused("a branch below another branch", head, control.SessionPromoteRequest{Branch: "main/a/b"},
		control.Error{Code: control.ExitRemote, Kind: control.CodeConflict, Cause: "beside main", Hint: "another branch"})
	p.other("a", "theirs\n"+lines)
	p.refused("a branch with commits of others", head, control.SessionPromoteRequest{},
		control.Error{Code: control.ExitRemote, Kind: control.CodeRefused, Cause: "not a fast-forward", Hint: "--squash"})
	p.refused("a conflict", head, control.SessionPromoteRequest{Method: control.PromoteMerge},
		control.Error{Code: control.ExitRemote, Kind: control.CodeConflict, Cause: "same lines: a", Hint: "git merge"})
	stranger, err := gittest.New(filepath.Join(t.TempDir(), "stranger.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.refused("a repository without the history", head, control.SessionPromoteRequest{To: stranger.Path},
		control.Error{Code: control.ExitRemote, Kind: control.CodeNotFound, Cause: p.base.String(), Hint: "push that commit"})
	p.Record.Ref = p.base.String()
	p.refused("a session that was mounted by a commit", head, control.SessionPromoteRequest{},
		control.Error{Code: control.ExitUsage, Cause: "without a branch", Hint: "--to :BRANCH"})
	hook := "#!/bin/sh\necho protected branch >&2\nexit 1\n"
	if err := os.WriteFile(filepath.Join(p.remote.Path, "hooks", "pre-receive"), []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	p.refused("a branch that the server protects", head, control.SessionPromoteRequest{Branch: "new"},
		control.Error{Code: control.ExitRemote, Kind: control.CodeRefused, Cause: "protected branch"})
}

// TestCredentialsOfTarget checks that the token of the session remote is sent only to the session remote. If the target
// is also the mounted remote, the credentials of the mount are preferred.
func TestCredentialsOfTarget(t *testing.T) {
	const origin, far, other = "https://git.example/app.git", "https://far.example/s.git", "https://x.example/y.git"
	errOpened := errors.New("opened")
	two := control.MountRequest{Remote: origin, SessionOptions: control.SessionOptions{Remote: far}}
	for _, c := range []struct {
		name      string
		mount     control.MountRequest
		to        string
		at, token string // session remote and session token of the request that opens the target
		branch    string // branch of a pull request
	}{
		{"the mounted remote", two, "",
			control.RemoteOrigin, "", "afs/work"},
		{"another repository", two, other,
			other, "", "afs/work"},
		{"the session remote by its URL", two,
			far, far, "s3cret", "afs-work"},
		{"one repository", control.MountRequest{Remote: origin, SessionOptions: control.SessionOptions{Remote: origin}}, "",
			origin, "s3cret", "afs-work"},
		{"one repository, and a token of the mount", control.MountRequest{Remote: origin,
			MountLogin: control.MountLogin{Token: "mine"}, SessionOptions: control.SessionOptions{Remote: origin}}, "",
			control.RemoteOrigin, "", "afs-work"},
		{"one repository, and a password of the mount", control.MountRequest{Remote: "https://joe:pw@git.example/app.git",
			SessionOptions: control.SessionOptions{Remote: origin}}, "", control.RemoteOrigin, "", "afs-work"},
	} {
		c.mount.SessionToken, c.mount.Session = "s3cret", "work"
		p := &promotion{o: &Session{Name: "work", Request: c.mount, Record: statedir.Record{Ref: "refs/heads/main"}},
			r: control.SessionPromoteRequest{To: c.to, PullRequest: true}, reply: &control.SessionPromoteReply{}}
		var got control.MountRequest
		err := p.open(Options{Open: func(r control.MountRequest) (*thin.Remote, error) {
			got = r
			return nil, errOpened
		}})
		var usage *control.Error
		if !errors.As(err, &usage) || usage.Code != control.ExitUsage || strings.Contains(err.Error(), "pw") {
			t.Errorf("%s: got %v, want an error with the exit code %d, without a password", c.name, err, control.ExitUsage)
		}
		if got.SessionOptions.Remote != c.at || string(got.SessionToken) != c.token || got.Session != "" {
			t.Errorf("%s: opened %s with the token %q for session %q, want %s with %q", c.name, got.SessionOptions.Remote,
				string(got.SessionToken), got.Session, c.at, c.token)
		}
		err = p.open(Options{Open: func(control.MountRequest) (*thin.Remote, error) {
			remote, err := transport.Open(origin, transport.Options{})
			return thin.New(remote, "", nil), err
		}})
		if err != nil || p.reply.Branch != c.branch || p.reply.Base != "main" {
			t.Errorf("%s: pull request: got %q into %q, %v, want %q into main",
				c.name, p.reply.Branch, p.reply.Base, err, c.branch)
		}
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestResults checks that a server that lacks objects gets one more push, with all objects, and no third push.
func TestResults(t *testing.T) {
	answer := func(kinds ...transport.RejectKind) (again []bool, err error) {
		p := &promotion{reply: &control.SessionPromoteReply{Branch: "b", Target: "t"}}
		for _, kind := range kinds {
			var more bool
			more, err = p.result(&transport.Rejected{Ref: "refs/heads/b", Kind: kind, Text: "text"})
			again = append(again, more)
		}
		return again, err
	}
	const missing, unpack = transport.RejectMissing, transport.RejectUnpack
	const moved, hook = transport.RejectMoved, transport.RejectHook
	for _, c := range []struct {
		kinds []transport.RejectKind
		again []bool
		code  control.ErrorCode
	}{
		{[]transport.RejectKind{missing, missing}, []bool{true, false}, control.CodeRefused},
		{[]transport.RejectKind{unpack, moved, moved}, []bool{true, true, false}, control.CodeConflict},
		{[]transport.RejectKind{moved, missing, hook}, []bool{true, true, false}, control.CodeRefused},
	} {
		again, err := answer(c.kinds...)
		if !slices.Equal(again, c.again) || control.AsError(err).ErrorCode() != c.code {
			t.Errorf("answers %v: got more attempts %v and %v, want %v and %s", c.kinds, again, err, c.again, c.code)
		}
	}
}
