package statedir_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/host/statedir/statedirtest"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/session/trash"
)

// list makes the overlay of the home at dir list shares.
func list(t *testing.T, dir string, ids ...string) {
	t.Helper()
	path := filepath.Join(dir, "overlay", "shares")
	text := ""
	for _, id := range ids {
		text += "share " + id + "\n"
	}
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path+".new", []byte(text), 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// share creates a share with one file.
func share(t *testing.T, h statedir.Homes) (id string, release func()) {
	t.Helper()
	id, release, err := h.NewShare(time.Now())
	if err == nil {
		err = os.WriteFile(filepath.Join(statedir.SharesDir(h.State), id, "file"), []byte("contents"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return id, release
}

// left returns the names of all files in the directory of the shares.
func left(t *testing.T, h statedir.Homes) string {
	t.Helper()
	entries, err := os.ReadDir(statedir.SharesDir(h.State))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// A share is removed when its last user is removed, and not while a process holds it.
func TestSharesAreRemovedWithTheirLastUser(t *testing.T) {
	h := statedirtest.New(t)
	if shares, removed, err := h.Shares(); err != nil || len(shares)+len(removed) > 0 {
		t.Errorf("shares of a new state directory: got %v, %v, %v", shares, removed, err)
	}
	statedirtest.Add(t, h, "parent", 1, true)
	statedirtest.Add(t, h, "fork", 1, true)
	one, held := share(t, h)
	two, free := share(t, h)
	list(t, filepath.Join(h.Dir(), "parent"), one)
	list(t, filepath.Join(h.Dir(), "fork"), one, two)
	free()
	remove := func(home string) {
		t.Helper()
		if _, err := h.Discard(home, false); err != nil {
			t.Fatal(err)
		}
	}
	shares, _, err := h.Shares()
	if err != nil || len(shares) != 2 || len(shares[0].Users) != 2 || len(shares[1].Users) != 1 {
		t.Errorf("shares: got %+v, %v", shares, err)
	}
	remove("parent")
	if got := left(t, h); got != one+" "+two {
		t.Errorf("shares after the parent was removed: got %q", got)
	}
	remove("fork")
	if got := left(t, h); got != one {
		t.Errorf("shares after both homes were removed: got %q, want the one that is held", got)
	}
	held()
	if unused, err := h.RemoveShares(true); err != nil || len(unused) != 1 || left(t, h) != one {
		t.Errorf("dry run: got %v, %v, and %q is left", unused, err, left(t, h))
	}
	if unused, err := h.RemoveShares(false); err != nil || len(unused) != 1 || left(t, h) != "" {
		t.Errorf("remove shares: got %v, %v, and %q is left", unused, err, left(t, h))
	}
	if _, err := h.HoldShare(one); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("hold a removed share: got %v", err)
	}
}

// A share that is empty when it is released is removed.
func TestEmptyShareIsRemoved(t *testing.T) {
	h := statedirtest.New(t)
	_, release, err := h.NewShare(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	release()
	if got := left(t, h); got != "" {
		t.Errorf("shares: got %q, want none", got)
	}
}

// A fork that fails before files were moved to its share does not remove the share from a later fork, which moves them.
func TestShareOfAFailedForkIsHeld(t *testing.T) {
	h := statedirtest.New(t)
	id, failed, err := h.NewShare(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	later, err := h.MakeShare(id)
	if err != nil {
		t.Fatal(err)
	}
	failed()
	if got := left(t, h); got != id {
		t.Errorf("shares after the first fork has failed: got %q, want %s", got, id)
	}
	later()
	if got := left(t, h); got != "" {
		t.Errorf("shares after both forks have failed: got %q", got)
	}
	statedirtest.Add(t, h, "parent", 1, true)
	list(t, filepath.Join(h.Dir(), "parent"), id)
	if later, err = h.MakeShare(id); err != nil {
		t.Fatal(err)
	}
	sole := h.Sole(filepath.Join(h.Dir(), "parent"))
	if ids, unlock, err := sole([]string{id}); err != nil || len(ids) > 0 {
		t.Errorf("shares that only the parent uses, during a fork: got %v, %v", ids, err)
	} else {
		unlock()
	}
	later()
}

// A deleted session keeps its shares until the trash is emptied.
func TestSharesOfDeletedSessions(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "work", 1, true)
	id, release := share(t, h)
	list(t, filepath.Join(h.Dir(), "work"), id)
	release()
	if _, err := h.Discard("work", true); err != nil {
		t.Fatal(err)
	}
	h.EmptyTrash(time.Now())
	if _, err := h.RemoveShares(false); err != nil || left(t, h) != id {
		t.Errorf("shares of a session in the trash: got %q, %v", left(t, h), err)
	}
	h.EmptyTrash(time.Now().Add(trash.Keep + time.Hour))
	if got := left(t, h); got != "" {
		t.Errorf("shares after the trash was emptied: got %q", got)
	}
}

// A home that cannot be read may use any share.
func TestUnreadableHomeKeepsAllShares(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "work", 1, true)
	id, release := share(t, h)
	release()
	list(t, filepath.Join(h.Dir(), "work"), "damaged")
	if unused, err := h.RemoveShares(false); err == nil || len(unused) > 0 || left(t, h) != id {
		t.Errorf("remove shares: got %v, %v, and %q is left", unused, err, left(t, h))
	}
	if _, _, err := h.Shares(); err == nil {
		t.Error("list shares: got no error")
	}
	// The other homes can be read and removed as before.
	statedirtest.Add(t, h, "fork", 1, false)
	list(t, filepath.Join(h.Dir(), "fork"), id)
	f, err := h.LockExisting("fork")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Inspect(); err != nil && strings.Contains(err.Error(), "share") {
		t.Errorf("inspect the fork: got %v", err)
	}
	if err := f.Remove(); err != nil || left(t, h) != id {
		t.Errorf("remove the fork: got %v, and %q is left", err, left(t, h))
	}
}

// Two processes that end the last users of a share at the same time remove it.
func TestShareOfTwoLastUsers(t *testing.T) {
	h := statedirtest.New(t)
	for range 50 {
		id, release := share(t, h)
		for _, name := range []string{"one", "two"} {
			statedirtest.Add(t, h, name, 1, true)
			list(t, filepath.Join(h.Dir(), name), id)
		}
		release()
		var all sync.WaitGroup
		for _, name := range []string{"one", "two"} {
			all.Go(func() {
				if _, err := h.Discard(name, false); err != nil {
					t.Error(err)
				}
			})
		}
		if all.Wait(); left(t, h) != "" {
			t.Fatalf("shares after both users were removed: got %q", left(t, h))
		}
	}
}

// A start removes the shares that a killed process has left.
func TestRemoveLeftoverShares(t *testing.T) {
	h := statedirtest.New(t)
	_, release := share(t, h)
	release()
	id, release := share(t, h)
	release()
	dir := statedir.SharesDir(h.State)
	if err := os.Rename(filepath.Join(dir, id), filepath.Join(dir, statedir.RemovedPrefix+"1-"+id)); err != nil {
		t.Fatal(err)
	}
	if _, removed, err := h.Shares(); err != nil || len(removed) != 1 {
		t.Errorf("shares: got the removed ones %q, %v", removed, err)
	}
	if err := h.RemoveLeftovers(); err != nil || left(t, h) != "" {
		t.Errorf("remove leftovers: got %v, and %q is left", err, left(t, h))
	}
}

// A daemon removes the files of unused shares in the background. If it ends before, another process removes them.
func TestDroppedSharesAreSwept(t *testing.T) {
	h := statedirtest.New(t)
	h.Sweeper = statedir.NewSweeper(h.State, h.Log)
	drop := func() {
		t.Helper()
		id, release := share(t, h)
		release()
		dir := filepath.Join(statedir.SharesDir(h.State), id, "contents", "0")
		err := os.MkdirAll(dir, 0o700)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)
		}
		if err = errors.Join(err, h.DropShares()); err != nil {
			t.Fatal(err)
		}
		if got := left(t, h); !strings.HasPrefix(got, statedir.RemovedPrefix) || !strings.HasSuffix(got, id) {
			t.Errorf("shares after one was dropped: got %q, want only %s, renamed", got, id)
		}
	}
	drop()
	ended, end := context.WithCancel(t.Context())
	end()
	if h.Sweeper.Finish(ended); left(t, h) == "" {
		t.Error("files of shares were removed although there was no time for that")
	}
	if _, err := h.RemoveShares(false); err != nil || left(t, h) != "" { // as cache gc does
		t.Errorf("remove shares after a process was killed: got %v, and %q is left", err, left(t, h))
	}
	drop()
	if h.Sweeper.Finish(t.Context()); left(t, h) != "" {
		t.Errorf("shares after the end of a daemon: got %q", left(t, h))
	}
	drop()
	ctx, end := context.WithCancel(t.Context())
	swept := make(chan struct{})
	go func() { h.Sweeper.Run(ctx); close(swept) }()
	await.Until(t, "the files of the share are removed", func() bool { return left(t, h) == "" })
	end()
	await.Receive(t, swept)
}

// While homes move to the trash and back, and others get shares, no share is removed that a home uses.
func TestSharesWhileHomesMove(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "moving", 1, true)
	statedirtest.Add(t, h, "growing", 1, true)
	kept, release := share(t, h)
	list(t, filepath.Join(h.Dir(), "moving"), kept)
	release()
	var all sync.WaitGroup
	done := make(chan struct{})
	all.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if _, err := h.RemoveShares(false); err != nil {
				t.Error(err)
				return
			}
		}
	})
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	all.Go(func() {
		for range rounds {
			_, err := h.Discard("moving", true)
			if err = errors.Join(err, h.FromTrash("moving", time.Time{})); err != nil {
				t.Error(err)
				break
			}
		}
		close(done)
	})
	for range rounds / 10 {
		id, release := share(t, h)
		list(t, filepath.Join(h.Dir(), "growing"), id)
		release()
		if _, err := os.Stat(filepath.Join(statedir.SharesDir(h.State), id, "file")); err != nil {
			t.Errorf("share that a home uses: %v", err)
		}
	}
	all.Wait()
	if _, err := os.Stat(filepath.Join(statedir.SharesDir(h.State), kept, "file")); err != nil {
		t.Errorf("share of the home that was moved: %v", err)
	}
}

// A home whose log is lost, but whose list of shares is not, may have changes.
func TestOverlayWithoutALog(t *testing.T) {
	dir := t.TempDir()
	if statedir.HasOverlay(dir) {
		t.Error("an empty home has an overlay")
	}
	list(t, dir, "01M80Q4Z9W7XA3V6MEZKGN8CE9")
	if !statedir.HasOverlay(dir) {
		t.Error("a home with a list of shares has no overlay")
	}
}

// The home of a fork to which files of its parent were being added when the process died has nothing of its own, even
// if it has a session repository and names shares.
func TestUnfinishedForksAreRemoved(t *testing.T) {
	h := statedirtest.New(t)
	for _, unfinished := range []bool{false, true} {
		statedirtest.Add(t, h, "fork", 1, false)
		dir := filepath.Join(h.Dir(), "fork")
		id, release := share(t, h)
		list(t, dir, id)
		release()
		r, err := statedir.ReadRecord(dir)
		if err != nil {
			t.Fatal(err)
		}
		if r.Fork.Unfinished = unfinished; r.Save(dir) != nil {
			t.Fatal("save the record")
		}
		if err := h.RemoveLeftovers(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) != unfinished {
			t.Errorf("home of a fork, unfinished: %v: got %v", unfinished, err)
		}
		if got := left(t, h); (got == "") != unfinished {
			t.Errorf("shares of a fork, unfinished: %v: got %q", unfinished, got)
		}
	}
}

// Contents cannot be moved to shares on another file system.
func TestSharesOnAnotherFileSystem(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "work", 1, true)
	home := filepath.Join(h.Dir(), "work")
	if err := h.CheckShares(home); err != nil {
		t.Errorf("shares that do not exist: got %v", err)
	}
	if err := os.Symlink("/proc", statedir.SharesDir(h.State)); err != nil {
		t.Fatal(err)
	}
	if err := h.CheckShares(home); !errors.Is(err, syscall.EXDEV) {
		t.Errorf("shares on another file system: got %v", err)
	}
}

// Sole remembers which home uses a share, and notices when that home ceases to use it, or is gone.
func TestSoleRemembersOtherUsers(t *testing.T) {
	h := statedirtest.New(t)
	for _, name := range []string{"parent", "fork", "other"} {
		statedirtest.Add(t, h, name, 1, true)
	}
	one, held := share(t, h)
	two, free := share(t, h)
	held()
	parent, fork := filepath.Join(h.Dir(), "parent"), filepath.Join(h.Dir(), "fork")
	list(t, parent, one, two)
	list(t, fork, one)
	sole := h.Sole(parent)
	want := func(what string, want ...string) {
		t.Helper()
		got, release, err := sole([]string{one, two})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v, want %q", what, got, err, want)
		}
		if err == nil {
			release()
		}
	}
	want("the fork uses one, and a process holds the other")
	free()
	want("the fork uses one", two)
	list(t, filepath.Join(h.Dir(), "other"), one)
	list(t, fork)
	want("another home uses one instead of the fork", two)
	if _, err := h.Discard("other", true); err != nil {
		t.Fatal(err)
	}
	want("that home is in the trash", two)
	h.EmptyTrash(time.Now().Add(2 * trash.Keep))
	want("that home is gone", one, two)
	list(t, fork, one, two)
	want("the fork uses both")
	// Nothing else is read as long as the fork uses both.
	if err := os.WriteFile(filepath.Join(parent, "overlay", "shares"), []byte("damaged\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want("the fork uses both, and another list cannot be read")
	list(t, fork, two)
	if _, _, err := sole([]string{one, two}); err == nil {
		t.Error("the fork uses one no longer, and another list cannot be read: got no error")
	}
}
