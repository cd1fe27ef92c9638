package gitside

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// KeepNew stores, in the home of the mount, what the git directory of a new session gets. The git directory is created
// after the reply to the request, possibly by another process. The file is removed when the directory has everything.
func KeepNew(home string, g *control.NewGit) error {
	if g == nil {
		return nil
	}
	text, err := json.Marshal(g)
	if err != nil {
		return fmt.Errorf("store settings of a new git directory: %w", err)
	}
	return disk.WriteFile(filepath.Join(home, statedir.NewGitName), text, 0o600)
}

// ReadCheckout returns the settings that determine the contents of files for the mount with the given home: those of
// the user, of the environment env, and the settings own of the session. A git directory that is not there yet counts
// as one that has what KeepNew has stored.
func ReadCheckout(ctx context.Context, home string, env []string, own []gitdir.Setting) gitdir.Checkout {
	dir := filepath.Join(home, "git")
	c := gitdir.ReadCheckout(ctx, dir, env, own...)
	if !gitdir.Exists(dir) {
		if g, err := readNew(home); err == nil && g != nil {
			c.Own = g.Attributes
		}
	}
	return c
}

// newGit returns what KeepNew has stored, or nil if the git directory has everything.
func (s *Side) newGit() (*control.NewGit, error) { return readNew(filepath.Dir(s.Mount.GitDir)) }

// readNew returns what KeepNew has stored in a home, or nil.
func readNew(home string) (*control.NewGit, error) {
	text, err := disk.ReadRegular(filepath.Join(home, statedir.NewGitName), disk.LargeFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	g := &control.NewGit{}
	if err == nil {
		err = json.Unmarshal(text, g)
	}
	if err != nil {
		return nil, fmt.Errorf("read settings of a new git directory: %w", err)
	}
	return g, nil
}

// addNew adds to the options o of a new git directory what KeepNew has stored.
func addNew(o *gitdir.Options, g *control.NewGit) {
	if g == nil {
		return
	}
	o.Settings, o.Files = slices.Clone(o.Settings), map[string][]byte{}
	for _, n := range g.Settings {
		o.Settings = append(o.Settings, gitdir.Setting(n))
	}
	for name, text := range map[string][]byte{"info/exclude": g.Exclude, "info/attributes": g.Attributes} {
		if len(text) > 0 {
			o.Files[name] = text
		}
	}
}

// tracked is the prefix of the refs that AddTracking adds.
const tracked = "refs/remotes/"

// tipsNow requests the remote-tracking branches of the clone while the git directory is created, so that most of them
// are in it when git commands can run. The function result waits for the answer. If there is none in time, AddTracking
// asks again.
func (s *Side) tipsNow(ctx context.Context, g *control.NewGit) (result func() fetch.Tips) {
	asked := make(chan fetch.Tips, 1)
	if g == nil || !g.Tracking {
		asked <- fetch.Tips{}
	} else {
		go func() {
			ctx, cancel := context.WithTimeout(ctx, listTimeLocal)
			defer cancel()
			tips := fetch.Tips{Store: s.Mount.Store}
			if err := tips.List(ctx, tracked, s.Contents.Snapshot().Commit); err != nil {
				s.Log.Info("list remote-tracking branches", zap.String("dir", s.Mount.Dir), zap.Error(err))
			}
			asked <- tips
		}()
	}
	return sync.OnceValue(func() fetch.Tips { return <-asked })
}

// AddTracking adds the remote-tracking branches of the clone to the git directory of a new session, after it has
// fetched the objects of those that this host lacks. This needs the history: without it, the other ones are added. It
// does nothing if the git directory has everything, and continues what was interrupted.
func (s *Side) AddTracking(ctx context.Context) error {
	g, err := s.newGit()
	dir := s.Dir()
	if err != nil || g == nil || dir == nil {
		return err
	}
	if g.Tracking {
		tips := fetch.Tips{Store: s.Mount.Store}
		if err = tips.List(ctx, tracked, s.Contents.Snapshot().Commit); err == nil {
			err = dir.AddTracking(ctx, tips.Here, tips.Symbolic)
		}
		if err == nil && len(tips.Missing) > 0 {
			if !tips.Deep {
				return nil // the next mount of the session asks again
			}
			if err = tips.Fetch(ctx); err == nil {
				err = dir.AddTracking(ctx, tips.Missing, tips.Symbolic)
			}
		}
		if err != nil {
			return err
		}
	}
	return os.Remove(filepath.Join(filepath.Dir(s.Mount.GitDir), statedir.NewGitName))
}
