// Package packs makes the packs that are pushed to session remotes. It makes small packs itself, and others by git
// pack-objects.
package packs

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

// Files writes the objects ids to packs in the directory dir, each of not much more than size bytes. It returns the ids
// of the objects in each pack, by the path of the pack. It skips objects that gc has removed from the Repo in the
// meantime, because they are not reachable any more.
func Files(ctx context.Context, repo *session.Repo, dir string, ids []object.ID,
	size int64) (map[string][]object.ID, error) {
	ids = slices.DeleteFunc(slices.Clone(ids), func(id object.ID) bool { return !repo.Owned(id) })
	slices.SortFunc(ids, object.ID.Compare)
	ids = slices.Compact(ids)
	if len(ids) == 0 {
		return nil, nil
	}
	small, err := Small(repo.Format(), ids, repo.Get)
	if err != nil {
		return nil, err
	}
	if small != nil {
		file := filepath.Join(dir, "small.pack")
		return map[string][]object.ID{file: ids}, os.WriteFile(file, small, 0o600)
	}
	args := []string{"pack-objects", "-q", "--max-pack-size=" + strconv.FormatInt(size, 10), filepath.Join(dir, "pack")}
	if _, err := git(repo.Dir()).Output(ctx, object.Lines(ids), args...); err != nil {
		return nil, fmt.Errorf("create packs: %w", err)
	}
	indexes, err := disk.Glob(dir, "*.idx")
	if err != nil {
		return nil, err
	}
	packs := map[string][]object.ID{}
	for _, index := range indexes {
		text, err := os.ReadFile(index)
		if err != nil {
			return nil, err
		}
		if packs[strings.TrimSuffix(index, ".idx")+".pack"], err = session.PackIDs(repo.Format(), text); err != nil {
			return nil, err
		}
	}
	return packs, nil
}

// Of returns a function that writes a pack of the given objects of the Repo to w.
func Of(repo *session.Repo, ids []object.ID) func(ctx context.Context, w io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		small, err := Small(repo.Format(), ids, repo.Get)
		if err != nil {
			return err
		}
		if small == nil {
			return Git(repo.Dir(), ids)(ctx, w)
		}
		if _, err := w.Write(small); err != nil {
			return fmt.Errorf("send pack: %w", err)
		}
		return nil
	}
}

// git returns a git directory in which packs are made.
func git(dir string, env ...string) gitcmd.Repo {
	return gitcmd.Repo{Dir: dir, Base: gitcmd.IsolatedEnviron(), Options: []string{"-c", "core.commitGraph=false"},
		Env: env}
}

// Git returns a function that writes a pack of the objects ids to w. The function runs git pack-objects in the
// repository gitDir with the additional environment variables env; it must find all objects there or in alternates. It
// finds deltas, reuses the entries of existing packs, and does not walk the history.
func Git(gitDir string, ids []object.ID, env ...string) func(ctx context.Context, w io.Writer) error {
	return Listed(gitDir, object.Lines(ids), env...)
}

// Listed returns a function like Git. The parameter list is the input of git pack-objects.
func Listed(gitDir, list string, env ...string) func(ctx context.Context, w io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		cmd := git(gitDir, env...).Command(ctx, "pack-objects", "-q", "--stdout")
		cmd.Stdin = strings.NewReader(list)
		var sendErr error
		err := gitcmd.Stream(cmd, func(out io.Reader) error {
			_, sendErr = bufio.NewReaderSize(out, 64<<10).WriteTo(w)
			return sendErr
		})
		if sendErr != nil {
			return fmt.Errorf("send pack: %w", sendErr)
		}
		if err != nil {
			return fmt.Errorf("create pack: %w", err)
		}
		return nil
	}
}
