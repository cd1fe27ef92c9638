package fuse

import (
	"strings"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/fuse/caller"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/worktree"
)

// GitDir is the git directory of a mount. In the working tree, the file ".git" contains the path of this directory.
type GitDir struct {
	Path string // absolute path
	// Hides reports whether a copy of the git directory does not contain the entry name of the git directory.
	Hides func(name string) bool
	// Copied returns the contents of the file config in a copy of the git directory. text has the contents in the git
	// directory itself.
	Copied func(text []byte) ([]byte, error)
}

// gitForms shows ".git" in one of three forms, which depend on the process:
//
//   - git gets the file, whose contents are the path of the git directory. So git finds the directory once, and after
//     that sends no
//     request to this file system.
//   - Other programs get a symbolic link to the git directory, because many of them look for a directory. The link
//     leads through a second
//     link in Options.Hidden, so that a copy of the first link outside of the mount does not lead to the git directory.
//   - A file system that is stacked on this one and stores changes elsewhere, such as overlayfs, gets a directory with
//     the present
//     contents of the git directory (gitCopy). Changes by git are stored in the other file system, so git works as on
//     an overlay over a
//     clone, and changes nothing in this mount.
//
// The kernel must not cache the entry, since a cached entry would be used for all processes.
type gitForms struct {
	raw.RawFileSystem // answers the requests for all other nodes
	fs                *fileSystem
	link              string // contents of the symbolic link ".git" that other programs than git see
	target            string // contents of the second symbolic link, gitTarget: the path of the git directory
	copied            *gitCopy
	device            func() uint64 // device of this file system
}

// Nodes of gitForms. The tree, the overlay and an objectDir do not use these numbers.
const (
	firstGit    = 2 << 62       // the directory of a gitCopy
	gitLink     = firstGit + 1  // the link ".git"
	gitTarget   = firstGit + 2  // the link in Options.Hidden
	firstCopied = firstGit + 16 // files and directories of a gitCopy
	lastGit     = 3<<62 - 1     // highest number of a node of gitForms
	gitEntry    = "git"         // name of the link gitTarget in Options.Hidden
	linkMode    = syscall.S_IFLNK | 0o777
)

// newGitForms returns the forms of ".git" in the mount at dir. inherited states that a predecessor has served the
// mount.
func newGitForms(requests raw.RawFileSystem, f *fileSystem, dir, hidden string, inherited bool, g *GitDir) *gitForms {
	return &gitForms{
		RawFileSystem: requests, fs: f, link: hidden + "/" + gitEntry, target: g.Path,
		copied: &gitCopy{fs: f, dir: *g, inherited: inherited, nodes: map[uint64]*copiedNode{}},
		device: func() uint64 {
			table, err := mountinfo.Self()
			if err != nil {
				return 0
			}
			m, _ := table.At(dir)
			return m.Device
		},
	}
}

// isGit reports whether a node belongs to gitForms.
func isGit(node uint64) bool { return node >= firstGit && node <= lastGit }

// isCopied reports whether a node belongs to a gitCopy.
func isCopied(node uint64) bool { return isGit(node) && node != gitLink && node != gitTarget }

func (g *gitForms) Lookup(cancel <-chan struct{}, h *raw.InHeader, name string, out *raw.EntryOut) raw.Status {
	switch {
	case h.NodeId == uint64(worktree.Root) && name == gitName:
		return g.lookupGit(cancel, h, out)
	case h.NodeId == hiddenNode && name == gitEntry:
		out.NodeId = gitTarget
		out.SetEntryTimeout(forever)
		out.SetAttrTimeout(forever)
		objectDir{fs: g.fs}.attributes(&out.Attr, hiddenNode)
		out.Attr.Ino, out.Attr.Mode, out.Attr.Nlink, out.Attr.Size = gitTarget, linkMode, 1, uint64(len(g.target))
		return raw.OK
	case isCopied(h.NodeId):
		return g.copied.lookup(h.NodeId, name, out)
	}
	return g.RawFileSystem.Lookup(cancel, h, name, out)
}

// lookupGit looks up ".git" in the root. It waits as long as the look-up of the file waits.
func (g *gitForms) lookupGit(cancel <-chan struct{}, h *raw.InHeader, out *raw.EntryOut) raw.Status {
	status := g.RawFileSystem.Lookup(cancel, h, gitName, out)
	file := out.NodeId
	// If the user has moved or replaced the git directory of the mount, ".git" has the same form for all processes.
	if status != raw.OK || file == 0 || !worktree.IsGitFile(g.fs.tree, worktree.Node(file)) {
		return status
	}
	out.SetEntryTimeout(0)
	if h.Pid == 0 || proc.IsOwnThread(int(h.Pid)) {
		return raw.OK
	}
	layer := caller.OnLayer(h.Pid, g.device)
	if !layer && isGitCommand(h.Pid) {
		return raw.OK
	}
	attr := out.Attr
	// the reply does not contain the node of the file, so the look-up that was counted for it is undone
	g.RawFileSystem.Forget(file, 1)
	*out = raw.EntryOut{}
	if layer {
		return g.copied.top(out)
	}
	out.NodeId = gitLink
	out.SetAttrTimeout(forever)
	g.linkAttributes(&out.Attr, attr)
	return raw.OK
}

// isGitCommand reports whether a thread belongs to a git command.
func isGitCommand(tid uint32) bool {
	name, err := proc.Of(int(tid)).Name()
	return err == nil && (name == "git" || strings.HasPrefix(name, "git-"))
}

// linkAttributes fills out with the attributes of the symbolic link ".git": those of the file ".git", except type, mode
// and size.
func (g *gitForms) linkAttributes(out *raw.Attr, file raw.Attr) {
	*out = file
	out.Mode, out.Nlink, out.Size, out.Blocks = linkMode, 1, uint64(len(g.link)), 0
}

// file returns the node of the file ".git"; ok is false if it has been removed or renamed.
func (g *gitForms) file(cancel <-chan struct{}, h *raw.InHeader) (node uint64, ok bool) {
	w := g.fs.wait(cancel, h)
	defer w.finish()
	a, err := g.fs.tree.Lookup(w, worktree.Root, gitName)
	return uint64(a.Node), err == nil && worktree.IsGitFile(g.fs.tree, a.Node)
}

func (g *gitForms) GetAttr(cancel <-chan struct{}, in *raw.GetAttrIn, out *raw.AttrOut) raw.Status {
	switch {
	case in.NodeId == gitLink:
		file, ok := g.file(cancel, &in.InHeader)
		if !ok {
			return raw.Status(syscall.ESTALE)
		}
		of := *in
		of.NodeId = file
		status := g.RawFileSystem.GetAttr(cancel, &of, out)
		g.linkAttributes(&out.Attr, out.Attr)
		return status
	case in.NodeId == gitTarget:
		objectDir{fs: g.fs}.attributes(&out.Attr, hiddenNode)
		out.Attr.Ino, out.Attr.Mode, out.Attr.Nlink, out.Attr.Size = gitTarget, linkMode, 1, uint64(len(g.target))
		out.SetTimeout(forever)
		return raw.OK
	case isGit(in.NodeId):
		return g.copied.getAttr(in.NodeId, out)
	}
	return g.RawFileSystem.GetAttr(cancel, in, out)
}

// SetAttr changes owner or times of the file ".git" if the request is for the symbolic link ".git". The kernel never
// sends a change of the mode of a link.
func (g *gitForms) SetAttr(cancel <-chan struct{}, in *raw.SetAttrIn, out *raw.AttrOut) raw.Status {
	if in.NodeId != gitLink {
		return g.RawFileSystem.SetAttr(cancel, in, out)
	}
	file, ok := g.file(cancel, &in.InHeader)
	if !ok {
		return raw.Status(syscall.ESTALE)
	}
	of := *in
	of.NodeId = file
	status := g.RawFileSystem.SetAttr(cancel, &of, out)
	g.linkAttributes(&out.Attr, out.Attr)
	return status
}

// Link answers a request for another name of the symbolic link ".git" by creating a new symbolic link with the same
// contents, because the kernel expects the reply to be a symbolic link.
func (g *gitForms) Link(cancel <-chan struct{}, in *raw.LinkIn, name string, out *raw.EntryOut) raw.Status {
	if in.Oldnodeid == gitLink {
		return g.RawFileSystem.Symlink(cancel, &in.InHeader, g.link, name, out)
	}
	return g.RawFileSystem.Link(cancel, in, name, out)
}

func (g *gitForms) Readlink(cancel <-chan struct{}, h *raw.InHeader) ([]byte, raw.Status) {
	switch {
	case h.NodeId == gitLink:
		return []byte(g.link), raw.OK
	case h.NodeId == gitTarget:
		return []byte(g.target), raw.OK
	case isGit(h.NodeId):
		return g.copied.readlink(h.NodeId)
	}
	return g.RawFileSystem.Readlink(cancel, h)
}

func (g *gitForms) Read(cancel <-chan struct{}, in *raw.ReadIn, buf []byte) (raw.ReadResult, raw.Status) {
	if isCopied(in.NodeId) {
		return g.copied.read(in, buf)
	}
	return g.RawFileSystem.Read(cancel, in, buf)
}

func (g *gitForms) ReadDir(cancel <-chan struct{}, in *raw.ReadIn, out *raw.DirEntryList) raw.Status {
	if isCopied(in.NodeId) {
		return g.copied.list(in, out.AddDirEntry)
	}
	return g.RawFileSystem.ReadDir(cancel, in, out)
}

// ReadDirPlus lists the names of a gitCopy without attributes, as ReadDirPlus of an objectDir does.
func (g *gitForms) ReadDirPlus(cancel <-chan struct{}, in *raw.ReadIn, out *raw.DirEntryList) raw.Status {
	if isCopied(in.NodeId) {
		return g.copied.list(in, func(e raw.DirEntry) bool { return out.AddDirLookupEntry(e) != nil })
	}
	return g.RawFileSystem.ReadDirPlus(cancel, in, out)
}

func (g *gitForms) Forget(node, lookups uint64) {
	switch {
	case isCopied(node):
		g.copied.forget(node, lookups)
	case !isGit(node):
		g.RawFileSystem.Forget(node, lookups)
	}
}

// OnUnmount closes the files of the gitCopy.
func (g *gitForms) OnUnmount() {
	g.RawFileSystem.OnUnmount()
	g.copied.close()
}
