package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/statedir"
)

const (
	lowSpace   = 64 << 20 // minimum number of free bytes in a state directory, below which the finding is LevelBad
	shortSpace = 1 << 30  // number of bytes that should be free, below which the finding is LevelWarn
	lowFiles   = 1000     // minimum number of free inodes, below which the finding is LevelBad
	// shortFiles is the number of inodes that should be free, below which the finding is LevelWarn.
	shortFiles = 50_000

	// gitTime is the maximum run time of a git command.
	gitTime = 10 * time.Second

	fuseConf = "/etc/fuse.conf" // configuration of fusermount3
)

// ExamineHost examines the parts of the host that every mount needs: the kernel, fusermount3, git, and the state
// directory.
func ExamineHost(ctx context.Context, state string, repair bool) []Finding {
	d := &doctor{homes: statedir.Homes{State: state, Log: zap.NewNop()}, repair: repair}
	d.kernel()
	d.users()
	d.git(ctx)
	d.stateDir(state)
	return d.findings
}

// kernel checks whether this process can mount, and which FUSE features the kernel supports, by a test mount that it
// removes at once.
func (d *doctor) kernel() {
	if err := mountpoint.CheckDevice(); err != nil {
		d.wrong("/dev/fuse", "load the kernel's fuse module; for a container add --device /dev/fuse and --cap-add SYS_ADMIN",
			"%v", err)
		return
	}
	// Root can open the device whatever its mode is, but other users need the permission to read and write it.
	if info, err := os.Stat("/dev/fuse"); os.Geteuid() == 0 && err == nil && info.Mode().Perm()&0o006 != 0o006 {
		d.warn("/dev/fuse", "run chmod 666 /dev/fuse, the mode on most systems",
			"users cannot mount, because they may not open the device (mode %03o)",
			info.Mode().Perm())
	} else if err := unix.Access("/dev/fuse", unix.R_OK|unix.W_OK); err != nil {
		d.wrong("/dev/fuse", "run chmod 666 /dev/fuse as root, the mode on most systems",
			"user %d may not open the device", os.Geteuid())
		return
	}
	var name unix.Utsname
	_ = unix.Uname(&name) // uname(2) cannot fail with a valid pointer
	release := unix.ByteSliceToString(name.Release[:])
	k, err := fuse.Probe(os.TempDir())
	switch {
	case err != nil:
		d.wrong("fuse",
			"a container needs --cap-add SYS_ADMIN and --device /dev/fuse, or --fuse-fd with a descriptor opened outside",
			"test mount failed: %v", err)
	// Without this feature, the kernel does not send requests a second time. So the requests that a process has read but
	// not answered before it died are lost.
	case !k.Resend:
		d.warn("kernel", "with Linux 6.9 or later, mounts outlive their process",
			"Linux %s, fuse %s; mounts fail if the daemon is killed", release, k)
	case len(k.Lacks) > 0:
		d.warn("kernel", "", "Linux %s, fuse %s", release, k)
	default:
		d.ok("kernel", "Linux %s, fuse %s", release, k)
	}
}

// users checks whether users other than root can mount.
func (d *doctor) users() {
	root := os.Geteuid() == 0
	path, err := exec.LookPath("fusermount3")
	switch {
	case err != nil && root:
		d.warn("fusermount3", "install fuse3", "fusermount3 is not installed: only root can mount")
		return
	case err != nil:
		d.wrong("fusermount3", "install fuse3, or mount as root", "fusermount3 is not installed: only root can mount")
		return
	}
	// Users can mount with fusermount3 if it is set-user-ID or has a file capability.
	info, err := os.Stat(path)
	var caps [1]byte
	_, capErr := unix.Getxattr(path, "security.capability", caps[:])
	// ERANGE means that the attribute exists, because the buffer is too short for any value.
	if err == nil && info.Mode()&fs.ModeSetuid == 0 && !(capErr == nil || errors.Is(capErr, unix.ERANGE)) {
		// This is only a warning for root, because root can mount without fusermount3.
		report := d.wrong
		if root {
			report = d.warn
		}
		report("fusermount3", "run chmod u+s "+path, "program is not set-user-ID: users cannot mount")
		return
	}
	d.ok("fusermount3", "%s", path)
	// The option user_allow_other matters only for users other than root.
	if conf, err := os.ReadFile(fuseConf); root {
		return
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.warn(fuseConf, "", "%v", err)
	} else if !allowsOther(string(conf)) {
		d.warn(fuseConf, "add the line user_allow_other to the file as root",
			"user_allow_other is not set: only root can use --allow-other and --recurse-submodules")
	}
}

// allowsOther reports whether fuse.conf allows the mount option allow_other. The format of fuse.conf is described in
// mount.fuse3(8): one option in each line, and comments after #.
func allowsOther(conf string) bool {
	for line := range strings.Lines(conf) {
		line, _, _ = strings.Cut(line, "#")
		if strings.TrimSpace(line) == "user_allow_other" {
			return true
		}
	}
	return false
}

// gitVersions lists the limitations of old versions of git. Each entry applies to the versions that are older than its
// version major.minor.
var gitVersions = []struct {
	major, minor int
	lack         string
}{
	{2, 36, "this version was not tested"},
	{2, 43, "git diff COMMIT reads every file"},
}

// git checks that git is installed and that its version has no limitation.
func (d *doctor) git(ctx context.Context) {
	if _, err := gitcmd.LookPath(); err != nil {
		d.wrong("git", "install git", "git is not installed")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, gitTime)
	defer cancel()
	out, err := gitcmd.Output(gitcmd.New(ctx, "version"))
	text, _ := strings.CutPrefix(strings.TrimSpace(string(out)), "git version ")
	major, minor, ok := gitVersion(text)
	if err != nil || !ok {
		d.wrong("git", "", "version of git is unknown: %v %q", err, text)
		return
	}
	for _, v := range gitVersions {
		if major < v.major || major == v.major && minor < v.minor {
			d.warn("git", fmt.Sprintf("install git %d.%d or later", v.major, v.minor), "version %s: %s", text, v.lack)
			return
		}
	}
	d.ok("git", "version %s", text)
}

// gitVersion returns the first two numbers of a version of git, such as 2.39.5 or 2.55.GIT. It returns false if text is
// no version.
func gitVersion(text string) (major, minor int, ok bool) {
	parts := strings.SplitN(text, ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	major, majorErr := strconv.Atoi(parts[0])
	minor, minorErr := strconv.Atoi(parts[1])
	return major, minor, majorErr == nil && minorErr == nil
}

// stateDir checks three conditions: this user, but no other user, can write to the state directory; enough space is
// free; and the file system is a local one.
func (d *doctor) stateDir(state string) {
	info, err := os.Stat(state)
	// The first mount creates the directory, so the nearest existing directory above it must be writable.
	if errors.Is(err, fs.ErrNotExist) {
		above := state
		// Find the nearest directory that exists.
		for errors.Is(err, fs.ErrNotExist) && above != "/" {
			above = filepath.Dir(above)
			_, err = os.Stat(above)
		}
		if err == nil {
			err = unix.Access(above, unix.W_OK|unix.X_OK)
		}
		if err != nil {
			d.wrong(state, "choose another directory with --state", "state directory cannot be created: %v", err)
			return
		}
		d.ok("state", "state directory does not exist yet")
		return
	}
	if err != nil {
		d.wrong(state, "choose another directory with --state", "state directory cannot be used: %v", err)
		return
	}
	if err := unix.Access(state, unix.W_OK|unix.X_OK|unix.R_OK); err != nil {
		d.wrong(state, "choose another directory with --state", "state directory cannot be used: %v", err)
		return
	}
	// The mode of the state directory must not let other users write to the directory, and the mode of the directories
	// below must not let other users read these directories.
	d.checkPrivate(state, info, 0o022)
	for _, name := range []string{"mounts", "shares", "stores", "blobs", "run"} {
		if info, err := os.Stat(filepath.Join(state, name)); err == nil {
			d.checkPrivate(filepath.Join(state, name), info, 0o077)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(state, &st); err != nil {
		d.wrong(state, "", "free space cannot be read: %v", err)
		return
	}
	const hint = "run artifactfs cache gc to free some space, or choose another directory with --state"
	free := int64(st.Bavail) * st.Bsize
	// The free space determines the level of the finding.
	report := d.ok
	if free < shortSpace {
		report = func(object, format string, args ...any) { d.warn(object, hint, format, args...) }
	}
	if free < lowSpace {
		report = func(object, format string, args ...any) { d.wrong(object, hint, format, args...) }
	}
	report(state, "%d MiB of disk space are free", free>>20)
	switch { // some file systems have no limit for the number of files and report 0 inodes
	case st.Files > 0 && st.Ffree < lowFiles:
		d.wrong(state, "remove small files from that file system", "only %d more files can be created on this file system",
			st.Ffree)
	case st.Files > 0 && st.Ffree < shortFiles:
		d.warn(state, "remove small files from that file system", "only %d more files can be created on this file system",
			st.Ffree)
	}
	// Network file systems are recognized by the file system type that statfs(2) returns.
	switch st.Type {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC:
		d.warn(state, "choose a directory on a local disk with --state",
			"state directory is on a network file system, which is "+
				"slow and may not support locks")
	}
}

// checkPrivate checks that the directory dir belongs to this user, and that its mode has none of the permission bits in
// rights. If repairs were requested, it removes these bits.
func (d *doctor) checkPrivate(dir string, info fs.FileInfo, rights fs.FileMode) {
	if owner, err := ownerOf(dir); err == nil && int(owner) != os.Geteuid() && os.Geteuid() != 0 {
		d.wrong(dir, "", "directory belongs to user %d", owner)
		return
	}
	if mode := info.Mode().Perm(); mode&rights != 0 {
		d.repairProblem(dir, fmt.Sprintf("other users can access the directory (mode %03o)", mode),
			"removes the access of other users",
			func() error { return os.Chmod(dir, mode&^rights) })
	}
}

// ownerOf returns the user ID of the owner of a file.
func ownerOf(path string) (uid uint32, err error) {
	var st unix.Stat_t
	err = unix.Stat(path, &st)
	return st.Uid, err
}
