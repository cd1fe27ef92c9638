package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/mounts"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// mount(8) and umount(8) run a helper program for the file system type fuse.artifactfs. This program is that helper if
// it is run by its name:
//
//	mount.fuse.artifactfs SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]
//	umount.fuse.artifactfs DIR [-flnrv] [-N NAMESPACE] [-t TYPE]
//
// (libmount, exec_helper in context_mount.c and context_umount.c). With this helper, lines of /etc/fstab and mount
// units work, and umount also unmounts the mounts inside a mount, such as those of redirected directories.
const (
	mountHelper   = "mount.fuse.artifactfs"
	unmountHelper = "umount.fuse.artifactfs"
)

// Exit codes of helpers, from mount(8).
const (
	helperUsage  = 1
	helperFailed = 32
)

// helper returns the name of the helper that the program was started as, or "".
func helper(name string) string {
	if name = filepath.Base(name); name == mountHelper || name == unmountHelper {
		return name
	}
	return ""
}

// runHelper runs the helper called name and returns its exit code. Without the option -v, it prints no result.
func runHelper(a *cli.App, name string, args []string) int {
	h, err := parseHelper(name, args)
	switch {
	case err != nil:
	case h.unmount:
		a.Quiet = !h.verbose
		err = helperUnmount(a, h)
	case h.fake:
	default:
		a.Quiet, a.Passing = !h.verbose, true // after a restart, /etc/fstab or the mount unit mounts the directory again
		if a.Through, err = h.openAutomount(); err != nil {
			break
		}
		if code := run(a, h.command, os.Environ()); code != control.ExitDone {
			return helperCode(code)
		}
		err = h.restrict()
	}
	if err == nil {
		return control.ExitDone
	}
	e := control.AsError(err)
	cli.PrintError(a.Stderr, e)
	return helperCode(e.Code)
}

// openAutomount opens the directory of the mount if that directory is an automount point. It returns a path of the
// directory through the open descriptor, or "" if the directory is not an automount point. While the automount is
// pending, the kernel blocks accesses of all processes that the automounter has not started (autofs_oz_mode). The
// daemon uses the path, and the descriptor stays open until this process ends.
func (h helperRun) openAutomount() (through string, err error) {
	dir, err := filepath.Abs(h.dir)
	if err != nil {
		return "", fmt.Errorf("mount: %w", err)
	}
	table, err := mountinfo.Self()
	if err != nil {
		return "", fmt.Errorf("mount: %w", err)
	}
	if m, _ := table.At(dir); m.Type != "autofs" {
		return "", nil
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &control.Error{Code: control.ExitFailed, Verb: "mount", Object: dir, Cause: err.Error()}
	}
	return proc.Of(os.Getpid()).FDPath(fd), nil
}

// helperCode translates an exit code of artifactfs to an exit code of mount(8).
func helperCode(code int) int {
	switch code {
	case control.ExitDone:
		return control.ExitDone
	case control.ExitUsage:
		return helperUsage
	}
	return helperFailed
}

// helperUnmount unmounts through the daemon. It calls umount(2) itself if flags of umount(2) are set, or if no daemon
// of the state directory serves the mount.
func helperUnmount(a *cli.App, h helperRun) error {
	ctx, stop := signal.NotifyContext(context.Background(), deadlySignals()...)
	defer stop()
	if h.flags == 0 {
		var err error
		if a.State, err = control.StateDir(a.State); err != nil {
			return err
		}
		m, err := a.Find(ctx, "unmount", h.dir)
		if err == nil && isDir(m.Dir, h.dir) {
			return unmountMounts(ctx, a, unmountOptions{dirs: []string{h.dir}, timeout: unmountTime})
		}
	}
	if err := unix.Unmount(h.dir, int(h.flags)|unix.UMOUNT_NOFOLLOW); err != nil {
		return &control.Error{Code: control.ExitFailed, Verb: "unmount", Object: h.dir, Cause: err.Error()}
	}
	return nil
}

// helperRun is one run of a helper.
type helperRun struct {
	unmount bool
	// source and dir are the operands of the helper: the remote and the directory.
	source, dir string
	command     []string // arguments of artifactfs mount
	flags       uintptr  // mount(2) flags to add, or umount(2) flags for a direct call
	// fake and verbose are the values of -f and -v.
	fake, verbose bool
}

// parseHelper parses the arguments of a helper.
func parseHelper(name string, args []string) (h helperRun, err error) {
	h.unmount = name == unmountHelper
	var names, options []string
	sloppy := false
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if len(arg) < 2 || arg[0] != '-' {
			names = append(names, arg)
			continue
		}
		for j, letter := range arg[1:] {
			// these letters have a value, which follows the letter or is the next argument
			if strings.ContainsRune("oNt", letter) {
				value := arg[2+j:]
				if value == "" {
					if i++; i == len(args) {
						return h, helperError(name, fmt.Sprintf("flag -%c needs a value", letter))
					}
					value = args[i]
				}
				if letter == 'o' {
					options = append(options, splitOptions(value)...)
				}
				break
			}
			switch letter {
			case 's':
				sloppy = true
			case 'f': // In umount, -f means force; in mount, it means fake.
				if h.unmount {
					h.flags |= unix.MNT_FORCE
				} else {
					h.fake = true
				}
			case 'v':
				h.verbose = true
			case 'l':
				h.flags |= unix.MNT_DETACH
			case 'n', 'r', 'i', 'w': // -n has no effect without mtab, and -r and -w are also passed as options
			default:
				return h, helperError(name, fmt.Sprintf("unknown flag -%c", letter))
			}
		}
	}
	switch {
	case h.unmount && len(names) == 1:
		h.dir = names[0]
		return h, nil
	case h.unmount:
		return h, helperError(name, "want a directory, and flags of umount(8)")
	case len(names) != 2:
		return h, helperError(name, "want a remote, a directory, and -o OPTIONS")
	}
	h.source, h.dir = names[0], names[1]
	return h, h.translate(name, options, sloppy)
}

// helperError returns the error for invalid arguments of a helper.
func helperError(name, cause string) error {
	return &control.Error{Code: control.ExitUsage, Verb: name, Cause: cause,
		Hint: "options are the flags of artifactfs mount, such as ref=NAME, session=NAME, prefetch=none and allow_other, and the " +
			"options of mount(8)"}
}

// splitOptions splits a list at commas outside of double quotes, and removes the quotes (libmount, ul_optstr_next).
func splitOptions(list string) (all []string) {
	var one strings.Builder
	quoted := false
	for _, r := range list {
		switch {
		case r == '"':
			quoted = !quoted
		case r == ',' && !quoted:
			all = append(all, one.String())
			one.Reset()
		default:
			one.WriteRune(r)
		}
	}
	return append(all, one.String())
}

// mountFlags maps generic mount options to flags of mount(2).
var mountFlags = map[string]uintptr{
	"noexec": unix.MS_NOEXEC, "noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME,
	"relatime": unix.MS_RELATIME, "strictatime": unix.MS_STRICTATIME,
}

// generic lists the mount options that are ignored. They are meant for mount(8) and init systems, are always in effect,
// or have no meaning for artifactfs: a mount of artifactfs is always nosuid and nodev, and never records access times.
var generic = []string{
	"defaults", "rw", "auto", "noauto", "nouser", "users", "owner", "group", "nofail", "fail", "_netdev", "nosuid", "suid",
	"nodev", "dev",
	"atime", "diratime", "norelatime", "nostrictatime", "lazytime", "nolazytime", "sync", "async", "dirsync",
	"mand", "nomand", "iversion", "noiversion",
	"silent", "loud", "nonempty", "default_permissions", "auto_unmount", "noauto_unmount", "symfollow",
}

// translate converts mount options to arguments of "artifactfs mount" and flags of mount(2). If sloppy is set, it
// ignores unknown options.
//
// An option that is the name of a flag of artifactfs mount, with underscores for hyphens, becomes that flag. Options of
// mount(8) itself are translated to mount(2) flags or dropped.
func (h *helperRun) translate(name string, options []string, sloppy bool) error {
	// Every flag of artifactfs mount is a valid option.
	known := mounts.MountCommand((&cli.App{})).Flags()
	var own []string
	for _, option := range options {
		key, value, hasValue := strings.Cut(option, "=")
		flag := strings.ReplaceAll(key, "_", "-")
		switch {
		case key == "" || key == "user" || slices.Contains(generic, key) || strings.HasPrefix(key, "x-") ||
			strings.HasPrefix(key, "X-") || key == "comment":
		case key == "exec": // the option exec cancels the flag noexec, which the option user implies
			h.flags &^= unix.MS_NOEXEC
		case mountFlags[key] != 0:
			h.flags |= mountFlags[key]
		case key == "ro":
			own = append(own, "--read-only")
		case slices.Contains(cli.Everywhere, flag):
			own = append(own, "--"+flag+"="+value)
		case flag == "foreground" || flag == "fuse-fd" || flag == "help":
			return helperError(name, fmt.Sprintf("option %s is only available on the command line", key))
		case key == "remount" || key == "bind" || key == "move":
			return helperError(name, fmt.Sprintf("option %s: options of a mount cannot be changed; unmount and mount again",
				key))
		case known.Lookup(flag) == nil && sloppy:
		case known.Lookup(flag) == nil:
			return helperError(name, fmt.Sprintf("unknown option %q", key))
		case !hasValue && known.Lookup(flag).NoOptDefVal == "":
			return helperError(name, fmt.Sprintf("option %s needs a value: %s=...", key, key))
		case !hasValue:
			own = append(own, "--"+flag)
		default:
			own = append(own, "--"+flag+"="+value)
		}
	}
	h.command = append(append([]string{"mount"}, own...), "--", h.source, h.dir)
	return nil
}

// restrict adds the mount flags that the mount options require. It uses a bind remount for that.
func (h *helperRun) restrict() error {
	if h.flags == 0 {
		return nil
	}
	var st unix.Statfs_t
	err := unix.Statfs(h.dir, &st)
	if err == nil {
		// These flags have the same numbers in statfs(2) and mount(2) (include/linux/statfs.h).
		flags := h.flags | uintptr(st.Flags)&(unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
		err = unix.Mount("", h.dir, "", unix.MS_REMOUNT|unix.MS_BIND|flags, "")
	}
	if errors.Is(err, unix.EPERM) && h.flags&unix.MS_NOEXEC == 0 {
		// an unprivileged process cannot set the flags about access times, but they have no effect on artifactfs anyway
		return nil
	}
	if err != nil {
		err = &control.Error{Code: control.ExitFailed, Verb: "mount", Object: h.dir,
			Cause: "directory is mounted, but the options that restrict access could not be set: " + err.Error(),
			Hint:  "option user implies noexec, which only root can set: add exec after user"}
	}
	return err
}
