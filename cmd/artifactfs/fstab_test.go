package main

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
)

func TestMountHelperTranslatesOptions(t *testing.T) {
	for args, want := range map[string]string{
		"http://h/r.git /m":                                                                              "mount -- http://h/r.git /m",
		"-n http://h/r.git /m -o rw":                                                                     "mount -- http://h/r.git /m",
		"h:r.git /m -o ro,ref=v1,allow_other,uid=7,gid=8":                                                "mount --read-only --ref=v1 --allow-other --uid=7 --gid=8 -- h:r.git /m",
		"h:r.git /m -o state=/s,session=a,prefetch_budget=3M,git-dir=x":                                  "mount --state=/s --session=a --prefetch-budget=3M --git-dir=x -- h:r.git /m",
		"h:r.git /m -sv -o rw,nosuid,nodev,user,foo=1,x-systemd.a=b":                                     "mount -- h:r.git /m",
		"h:r.git /m -oredirect=a,redirect=b -t fuse.artifactfs -N /ns":                                   "mount --redirect=a --redirect=b -- h:r.git /m",
		`h:r.git /m -o "redirect=a,b",token_file=/t,_netdev,noauto,auto`:                                 "mount --redirect=a,b --token-file=/t -- h:r.git /m",
		"h:r.git /m -o session=s,session_remote=h:w.git,checkpoint=interval=30s,take_over,exclude=*.iso": "mount --session=s --session-remote=h:w.git --checkpoint=interval=30s --take-over --exclude=*.iso -- h:r.git /m",
		"h:r.git /m -o defaults,nofail,user=joe,owner,comment=a,X-b,async":                               "mount -- h:r.git /m",
	} {
		h, err := parseHelper(mountHelper, strings.Fields(args))
		if got := strings.Join(h.command, " "); err != nil || got != want {
			t.Errorf("%s\n got %s, %v\nwant %s", args, got, err, want)
		}
	}
}

func TestMountHelperKeepsRestrictions(t *testing.T) {
	for options, want := range map[string]uintptr{
		"rw": 0, "noexec,noatime": unix.MS_NOEXEC | unix.MS_NOATIME, "noexec,user,exec": 0,
		"relatime,noexec": unix.MS_RELATIME | unix.MS_NOEXEC,
	} {
		if h, err := parseHelper(mountHelper, []string{"r", "/m", "-o", options}); err != nil || h.flags != want {
			t.Errorf("%s: flags %#x, %v, want %#x", options, h.flags, err, want)
		}
	}
}

func TestHelperRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"mount.fuse.artifactfs":                   "want a remote, a directory",
		"mount.fuse.artifactfs r /m /n":           "want a remote, a directory",
		"mount.fuse.artifactfs r /m -o":           "flag -o needs a value",
		"mount.fuse.artifactfs r /m -x":           "unknown flag -x",
		"mount.fuse.artifactfs r /m -o sesion=a":  `unknown option "sesion"`,
		"mount.fuse.artifactfs r /m -o ref":       "option ref needs a value",
		"mount.fuse.artifactfs r /m -o remount":   "options of a mount cannot be changed",
		"mount.fuse.artifactfs r /m -o fuse_fd=3": "only available on the command line",
		"umount.fuse.artifactfs":                  "want a directory",
		"umount.fuse.artifactfs /a /b":            "want a directory",
	} {
		words := strings.Fields(args)
		_, err := parseHelper(words[0], words[1:])
		if e := control.AsError(err); e == nil || e.Code != control.ExitUsage || !strings.Contains(e.Cause, want) ||
			e.Hint == "" {
			t.Errorf("parse the helper's arguments %s: got %+v, want a usage error", args, e)
		}
	}
}

func TestUnmountHelperFlags(t *testing.T) {
	h, err := parseHelper(unmountHelper, []string{"/m", "-nlf", "-t", "fuse.artifactfs"})
	if err != nil || h.dir != "/m" || h.flags != unix.MNT_DETACH|unix.MNT_FORCE || h.fake {
		t.Errorf("parse the flags of the unmount helper: got %+v, %v", h, err)
	}
}

func TestHelperByName(t *testing.T) {
	for name, want := range map[string]string{"/sbin/mount.fuse.artifactfs": mountHelper,
		"umount.fuse.artifactfs": unmountHelper, "/usr/bin/artifactfs": "", "mount.fuse": ""} {
		if got := helper(name); got != want {
			t.Errorf("helper(%s) = %q", name, got)
		}
	}
}

func TestSplitOptions(t *testing.T) {
	for list, want := range map[string][]string{`a,b=c`: {"a", "b=c"}, `a="b,c",d`: {"a=b,c", "d"}, ``: {""},
		`"a,b"`: {"a,b"}} {
		if got := splitOptions(list); !slices.Equal(got, want) {
			t.Errorf("splitOptions(%q) = %q", list, got)
		}
	}
}
