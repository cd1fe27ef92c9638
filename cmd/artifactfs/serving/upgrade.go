package serving

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

const (
	upgradeTime = 2 * time.Minute // the supervisor's patience with a new executable, and then with the old one
	upgradePoll = 5 * time.Millisecond
)

// upgradeReply is what `daemon --upgrade --json` prints.
type upgradeReply struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Mounts int    `json:"mounts"`
	Took   int64  `json:"took_ms"` // until all of them were served again
}

// upgrade has the daemon go on as the executable that runs now.
func upgradeDaemon(ctx context.Context, a *cli.App) error {
	executable, err := os.Executable()
	if err == nil {
		executable, err = filepath.EvalSymlinks(executable)
	}
	if err != nil {
		return cli.Failure("upgrade", "daemon", err)
	}
	if err := CheckExecutable(executable); err != nil {
		return err
	}
	client, err := control.Dial(ctx, a.DaemonSocket())
	if errors.Is(err, control.ErrNoServer) {
		return &control.Error{Code: control.ExitFailed, Kind: control.CodeNoDaemon, Verb: "upgrade", Object: "daemon", Cause: "none runs", Hint: "the next mount starts this version"}
	} else if err != nil {
		return cli.Failure("upgrade", "daemon", err)
	}
	ctx, cancel := context.WithTimeout(ctx, upgradeTime)
	defer cancel()
	before, err := client.Status(ctx)
	if err != nil {
		return cli.Failure("upgrade", "daemon", err)
	}
	start := time.Now()
	// The one that is asked dies of it. Only bad news are an answer.
	if err := client.Upgrade(ctx, control.UpgradeRequest{Executable: executable}); !errors.Is(err, control.ErrNoServer) {
		if err == nil {
			err = errors.New("the daemon did nothing")
		}
		return cli.Failure("upgrade", "daemon", err)
	}
	after, err := awaitUpgrade(ctx, client, before)
	if err != nil {
		return cli.Failure("upgrade", "daemon", err)
	}
	if why := after.Daemon.UpgradeFailed; why != "" {
		return &control.Error{Code: control.ExitFailed, Verb: "upgrade", Object: "daemon", Cause: why,
			Hint: "version " + after.Daemon.Version + " serves the mounts; see its log"}
	}
	r := upgradeReply{From: before.Daemon.Version, To: after.Daemon.Version, Mounts: len(after.Mounts), Took: time.Since(start).Milliseconds()}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, r)
	}
	_, err = fmt.Fprintf(a.Stdout, "upgraded from %s to %s in %d ms, %s\n", r.From, r.To, r.Took, cli.Plural(int64(r.Mounts), "mount"))
	return err
}

// awaitUpgrade waits until another process serves all that the one before did, or has given up on it.
func awaitUpgrade(ctx context.Context, client *control.Client, before control.Status) (control.Status, error) {
	for {
		now, err := client.Status(ctx)
		if err != nil {
			return now, err
		}
		if now.Daemon.PID != before.Daemon.PID && allServed(now) {
			return now, nil
		}
		select {
		case <-time.After(upgradePoll):
		case <-ctx.Done():
			return now, ctx.Err()
		}
	}
}

func allServed(s control.Status) bool {
	for _, m := range s.Mounts {
		if m.State == control.StatePreparing {
			return false
		}
	}
	return true
}

// CheckExecutable refuses a file in a mount of ours, without touching it: a daemon that needs what it serves to run waits for
// itself.
func CheckExecutable(path string) error {
	table, err := mountinfo.Self()
	if err != nil {
		return cli.Failure("upgrade", "daemon", err)
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if cli.HasMount(table, dir) {
			return &control.Error{Code: control.ExitFailed, Verb: "upgrade", Object: "daemon", Cause: path + " lies in a mount that the daemon may have to serve",
				Hint: "copy it elsewhere and run it from there"}
		}
		if dir == "/" || dir == "." {
			return nil
		}
	}
}
