package fuse

import (
	"time"

	raw "github.com/hanwen/go-fuse/v2/fuse"
)

// observed wraps the file system of a mount. It counts requests, measures how long they take, and reports them to the
// listeners of Trace (trace.go). Each request costs two reads of the clock and five atomic additions.
type observed struct {
	raw.RawFileSystem
	ops       *counters
	latencies *Latencies
	tracer    *tracer
}

var _ raw.RawFileSystem = (*observed)(nil)

// observation is one request in progress.
type observation struct {
	op    op        // kind of the request
	start time.Time // time at which the request was read
	event *event    // for the listeners of Trace; nil if there are none
}

// begin counts a request and records when it began. The caller must call end with the result.
func (o *observed) begin(op op, h *raw.InHeader) observation {
	s := observation{op: op, start: time.Now()}
	o.ops.byKind[op].Add(1)
	o.ops.pending.Add(1)
	if o.tracer.listened.Load() {
		s.event = o.tracer.begin(op, h, s.start)
	}
	return s
}

// end records how long a request took, and reports it to listeners with its status.
func (o *observed) end(s observation, status raw.Status) {
	took := time.Since(s.start)
	o.latencies[s.op].Observe(took)
	o.ops.pending.Add(-1)
	if status != raw.OK {
		o.ops.fail(status)
	}
	if s.event != nil {
		o.tracer.end(s.event, took, status)
	}
}

// setName records the name of the entry that the request concerns.
func (s *observation) setName(name string) {
	if s.event != nil {
		s.event.name = name
	}
}

// setNewName records the directory to which an entry is moved, and its new name.
func (s *observation) setNewName(dir uint64, name string) {
	if s.event != nil {
		s.event.toDir, s.event.toName = dir, name
	}
}

// setRange records the range of the file that the request concerns, in bytes.
func (s *observation) setRange(offset, size uint64) {
	if s.event != nil {
		s.event.Offset, s.event.Size = int64(offset), int64(size)
	}
}

// The methods below pass a request to the wrapped file system and observe it.

func (o *observed) Lookup(cancel <-chan struct{}, h *raw.InHeader, name string, out *raw.EntryOut) raw.Status {
	s := o.begin(opLookup, h)
	s.setName(name)
	status := o.RawFileSystem.Lookup(cancel, h, name, out)
	o.end(s, status)
	return status
}

// Forget counts a FORGET and measures its duration. Listeners get no event, because a FORGET has no reply.
func (o *observed) Forget(node, lookups uint64) {
	start := time.Now()
	o.ops.byKind[opForget].Add(1)
	o.RawFileSystem.Forget(node, lookups)
	o.latencies[opForget].Observe(time.Since(start))
}

func (o *observed) GetAttr(cancel <-chan struct{}, in *raw.GetAttrIn, out *raw.AttrOut) raw.Status {
	s := o.begin(opGetAttr, &in.InHeader)
	status := o.RawFileSystem.GetAttr(cancel, in, out)
	o.end(s, status)
	return status
}

func (o *observed) SetAttr(cancel <-chan struct{}, in *raw.SetAttrIn, out *raw.AttrOut) raw.Status {
	s := o.begin(opSetAttr, &in.InHeader)
	status := o.RawFileSystem.SetAttr(cancel, in, out)
	o.end(s, status)
	return status
}

func (o *observed) Mknod(cancel <-chan struct{}, in *raw.MknodIn, name string, out *raw.EntryOut) raw.Status {
	s := o.begin(opMknod, &in.InHeader)
	s.setName(name)
	status := o.RawFileSystem.Mknod(cancel, in, name, out)
	o.end(s, status)
	return status
}

func (o *observed) Mkdir(cancel <-chan struct{}, in *raw.MkdirIn, name string, out *raw.EntryOut) raw.Status {
	s := o.begin(opMkdir, &in.InHeader)
	s.setName(name)
	status := o.RawFileSystem.Mkdir(cancel, in, name, out)
	o.end(s, status)
	return status
}

func (o *observed) Unlink(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	s := o.begin(opUnlink, h)
	s.setName(name)
	status := o.RawFileSystem.Unlink(cancel, h, name)
	o.end(s, status)
	return status
}

func (o *observed) Rmdir(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	s := o.begin(opRmdir, h)
	s.setName(name)
	status := o.RawFileSystem.Rmdir(cancel, h, name)
	o.end(s, status)
	return status
}

func (o *observed) Rename(cancel <-chan struct{}, in *raw.RenameIn, name, newName string) raw.Status {
	s := o.begin(opRename, &in.InHeader)
	s.setName(name)
	s.setNewName(in.Newdir, newName)
	status := o.RawFileSystem.Rename(cancel, in, name, newName)
	o.end(s, status)
	return status
}

func (o *observed) Link(cancel <-chan struct{}, in *raw.LinkIn, name string, out *raw.EntryOut) raw.Status {
	s := o.begin(opLink, &in.InHeader)
	s.setName(name)
	status := o.RawFileSystem.Link(cancel, in, name, out)
	o.end(s, status)
	return status
}

func (o *observed) Symlink(cancel <-chan struct{}, h *raw.InHeader, target, name string, out *raw.EntryOut) raw.Status {
	s := o.begin(opSymlink, h)
	s.setName(name)
	status := o.RawFileSystem.Symlink(cancel, h, target, name, out)
	o.end(s, status)
	return status
}

func (o *observed) Readlink(cancel <-chan struct{}, h *raw.InHeader) ([]byte, raw.Status) {
	s := o.begin(opReadlink, h)
	target, status := o.RawFileSystem.Readlink(cancel, h)
	o.end(s, status)
	return target, status
}

func (o *observed) Access(cancel <-chan struct{}, in *raw.AccessIn) raw.Status {
	s := o.begin(opAccess, &in.InHeader)
	status := o.RawFileSystem.Access(cancel, in)
	o.end(s, status)
	return status
}

func (o *observed) GetXAttr(cancel <-chan struct{}, h *raw.InHeader, name string, dest []byte) (uint32, raw.Status) {
	s := o.begin(opGetXattr, h)
	n, status := o.RawFileSystem.GetXAttr(cancel, h, name, dest)
	o.end(s, status)
	return n, status
}

func (o *observed) ListXAttr(cancel <-chan struct{}, h *raw.InHeader, dest []byte) (uint32, raw.Status) {
	s := o.begin(opListXattr, h)
	n, status := o.RawFileSystem.ListXAttr(cancel, h, dest)
	o.end(s, status)
	return n, status
}

func (o *observed) SetXAttr(cancel <-chan struct{}, in *raw.SetXAttrIn, name string, value []byte) raw.Status {
	s := o.begin(opSetXattr, &in.InHeader)
	status := o.RawFileSystem.SetXAttr(cancel, in, name, value)
	o.end(s, status)
	return status
}

func (o *observed) RemoveXAttr(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	s := o.begin(opRemoveXattr, h)
	status := o.RawFileSystem.RemoveXAttr(cancel, h, name)
	o.end(s, status)
	return status
}

func (o *observed) Create(cancel <-chan struct{}, in *raw.CreateIn, name string, out *raw.CreateOut) raw.Status {
	s := o.begin(opCreate, &in.InHeader)
	s.setName(name)
	status := o.RawFileSystem.Create(cancel, in, name, out)
	o.end(s, status)
	return status
}

func (o *observed) Tmpfile(cancel <-chan struct{}, in *raw.CreateIn, out *raw.CreateOut) raw.Status {
	s := o.begin(opTmpfile, &in.InHeader)
	status := o.RawFileSystem.Tmpfile(cancel, in, out)
	o.end(s, status)
	return status
}

func (o *observed) Open(cancel <-chan struct{}, in *raw.OpenIn, out *raw.OpenOut) raw.Status {
	s := o.begin(opOpen, &in.InHeader)
	status := o.RawFileSystem.Open(cancel, in, out)
	o.end(s, status)
	return status
}

func (o *observed) Read(cancel <-chan struct{}, in *raw.ReadIn, buf []byte) (raw.ReadResult, raw.Status) {
	s := o.begin(opRead, &in.InHeader)
	s.setRange(in.Offset, uint64(in.Size))
	result, status := o.RawFileSystem.Read(cancel, in, buf)
	if result != nil {
		s.setRange(in.Offset, uint64(result.Size()))
	}
	o.end(s, status)
	return result, status
}

func (o *observed) Lseek(cancel <-chan struct{}, in *raw.LseekIn, out *raw.LseekOut) raw.Status {
	s := o.begin(opLseek, &in.InHeader)
	status := o.RawFileSystem.Lseek(cancel, in, out)
	o.end(s, status)
	return status
}

func (o *observed) Release(cancel <-chan struct{}, in *raw.ReleaseIn) {
	s := o.begin(opRelease, &in.InHeader)
	o.RawFileSystem.Release(cancel, in)
	o.end(s, raw.OK)
}

func (o *observed) Write(cancel <-chan struct{}, in *raw.WriteIn, data []byte) (uint32, raw.Status) {
	s := o.begin(opWrite, &in.InHeader)
	s.setRange(in.Offset, uint64(len(data)))
	n, status := o.RawFileSystem.Write(cancel, in, data)
	o.end(s, status)
	return n, status
}

func (o *observed) CopyFileRange(cancel <-chan struct{}, in *raw.CopyFileRangeIn) (uint32, raw.Status) {
	s := o.begin(opCopyFileRange, &in.InHeader)
	s.setRange(in.OffIn, in.Len)
	n, status := o.RawFileSystem.CopyFileRange(cancel, in)
	o.end(s, status)
	return n, status
}

func (o *observed) Ioctl(cancel <-chan struct{}, in *raw.IoctlIn, inbuf []byte, out *raw.IoctlOut,
	outbuf []byte) raw.Status {
	s := o.begin(opIoctl, &in.InHeader)
	status := o.RawFileSystem.Ioctl(cancel, in, inbuf, out, outbuf)
	o.end(s, status)
	return status
}

func (o *observed) Flush(cancel <-chan struct{}, in *raw.FlushIn) raw.Status {
	s := o.begin(opFlush, &in.InHeader)
	status := o.RawFileSystem.Flush(cancel, in)
	o.end(s, status)
	return status
}

func (o *observed) Fsync(cancel <-chan struct{}, in *raw.FsyncIn) raw.Status {
	s := o.begin(opFsync, &in.InHeader)
	status := o.RawFileSystem.Fsync(cancel, in)
	o.end(s, status)
	return status
}

func (o *observed) Fallocate(cancel <-chan struct{}, in *raw.FallocateIn) raw.Status {
	s := o.begin(opFallocate, &in.InHeader)
	s.setRange(in.Offset, in.Length)
	status := o.RawFileSystem.Fallocate(cancel, in)
	o.end(s, status)
	return status
}

func (o *observed) OpenDir(cancel <-chan struct{}, in *raw.OpenIn, out *raw.OpenOut) raw.Status {
	s := o.begin(opOpenDir, &in.InHeader)
	status := o.RawFileSystem.OpenDir(cancel, in, out)
	o.end(s, status)
	return status
}

func (o *observed) ReadDir(cancel <-chan struct{}, in *raw.ReadIn, out *raw.DirEntryList) raw.Status {
	s := o.begin(opReadDir, &in.InHeader)
	status := o.RawFileSystem.ReadDir(cancel, in, out)
	o.end(s, status)
	return status
}

func (o *observed) ReadDirPlus(cancel <-chan struct{}, in *raw.ReadIn, out *raw.DirEntryList) raw.Status {
	s := o.begin(opReadDirPlus, &in.InHeader)
	status := o.RawFileSystem.ReadDirPlus(cancel, in, out)
	o.end(s, status)
	return status
}

func (o *observed) FsyncDir(cancel <-chan struct{}, in *raw.FsyncIn) raw.Status {
	s := o.begin(opFsyncDir, &in.InHeader)
	status := o.RawFileSystem.FsyncDir(cancel, in)
	o.end(s, status)
	return status
}

func (o *observed) StatFs(cancel <-chan struct{}, h *raw.InHeader, out *raw.StatfsOut) raw.Status {
	s := o.begin(opStatFs, h)
	status := o.RawFileSystem.StatFs(cancel, h, out)
	o.end(s, status)
	return status
}
