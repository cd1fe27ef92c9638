package gitside

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// KeepNew stores, in the home of the mount, what the git directory of a new session gets. The git directory is created
// after the reply to the request, possibly by another process.
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

// addNew gives the new git directory what KeepNew has stored, and then removes the file. If this is interrupted, addNew
// does it again when the directory is opened.
func (s *Side) addNew(ctx context.Context) error {
	name := filepath.Join(filepath.Dir(s.Mount.GitDir), statedir.NewGitName)
	text, err := disk.ReadRegular(name, disk.LargeFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var g control.NewGit
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err != nil {
		return fmt.Errorf("read settings of a new git directory: %w", err)
	}
	settings := make([]gitdir.Setting, len(g.Settings))
	for i, n := range g.Settings {
		settings[i] = gitdir.Setting{Name: n.Name, Value: n.Value}
	}
	if err := gitdir.AddNew(ctx, s.Mount.GitDir, s.Mount.Dir, settings, g.Refspecs); err != nil {
		return err
	}
	return os.Remove(name)
}
