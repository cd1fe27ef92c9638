package wal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Open opens the log at path, or creates it. If it returns a *DamageError or ErrVersion, it has not changed the file.
//
// After a power cut, bytes behind the last valid record are cut and saved in LostFound, if they lie behind the part
// that is known to be synced. If the log was written in the current boot of the host, only the last record may be
// incomplete. Any other invalid part is reported as damage.
func Open(path string, o Options) (*Log, Recovery, error) {
	l := &Log{fs: o.FS, path: path}
	if l.fs == nil {
		l.fs = disk.OS
	}
	boot := o.BootID
	if boot == "" {
		boot, _ = l.fs.BootID() // without a boot ID, every Open assumes that the power was cut
	}
	copy(l.bootID[:], boot)
	mode := os.O_RDWR
	if o.Salvage {
		mode = os.O_RDONLY
	} else if err := l.fs.Remove(newPath(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		// The new log under its temporary name can be ignored: it contains no record that the old log lacks.
		return nil, Recovery{}, err
	}
	f, err := l.fs.OpenFile(path, mode, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return l.start(o)
	}
	if err != nil {
		return nil, Recovery{}, err
	}
	found, err := l.recover(f, &o)
	if err == nil && o.Salvage {
		l.size = found.end
		return l, found.Recovery, f.Close()
	}
	if err == nil {
		// If a process was killed in this boot, its records may not be synced. Open need not wait for the disk in this case:
		// the header keeps its meaning, so it may reach the disk before these records. The next Sync also syncs the
		// directory, because a rotation may have renamed the file.
		mustSync := found.Clean || found.PowerLost
		l.dirDirty = !mustSync
		taken := int64(0)
		// The killed process has allocated the disk space of the whole file.
		if !mustSync {
			taken = found.size
		}
		l.file, err = resume(f, found.end, found.last, taken, func(h *header) {
			if h.boot, h.clean = l.bootID, 0; h.version == raised {
				h.raise()
			}
		}, mustSync)
	}
	if err != nil {
		return nil, found.Recovery, errors.Join(fmt.Errorf("open log: %w", err), f.Close())
	}
	return l, found.Recovery, nil
}

// start creates the first log at a path. The file receives its final name once its header is on disk.
func (l *Log) start(o Options) (_ *Log, r Recovery, err error) {
	r.Fresh = true
	if o.Salvage {
		return l, r, nil
	}
	if l.file, err = create(l.fs, newPath(l.path), version, l.bootID); err != nil {
		return nil, r, fmt.Errorf("create log: %w", err)
	}
	if err := l.name(l.file); err != nil {
		return nil, r, errors.Join(fmt.Errorf("create log: %w", err), l.file.close())
	}
	return l, r, nil
}

// recovered is a Recovery together with the position in the file at which the next record is appended.
type recovered struct {
	Recovery
	replayed
	size int64 // size of the file in bytes
}

// recover replays the log file and, unless Salvage is set, cuts the bytes behind the last record. The order in which
// its writes reach the disk does not matter: until a header with the current boot ID is synced, the next Open repeats
// the writes.
func (l *Log) recover(f disk.File, o *Options) (recovered, error) {
	var r recovered
	st, err := f.Stat()
	if err != nil {
		return r, err
	}
	var h header
	if _, err := f.ReadAt(unsafe.Slice((*byte)(unsafe.Pointer(&h)), unsafe.Sizeof(h)), 0); err != nil &&
		!errors.Is(err, io.EOF) {
		return r, err
	}
	if err := l.checkHeader(&h); err != nil {
		if damage := (*DamageError)(nil); o.Salvage && errors.As(err, &damage) {
			r.Damage, err = damage, nil
		}
		return r, err
	}
	r.Clean, r.size = h.clean == 1, st.Size()
	r.Rebooted = h.boot != l.bootID || h.boot == bootID{}
	r.PowerLost = r.Rebooted && !r.Clean
	emit := o.Replay
	if emit == nil {
		emit = func([]byte, int64) error { return nil }
	}
	if r.replayed, err = replay(f, st.Size(), h.seed(), emit); err != nil {
		return r, err
	}
	r.Records = int64(r.last)
	behind, end, err := tail(f, r.replayed, st.Size(), h.seed())
	if err != nil {
		return r, err
	}
	// The log is damaged if a synced part is invalid, or if valid records follow the end although there was no power cut.
	if uint64(r.end) < h.synced || !r.PowerLost && (behind > 0 || r.refused) {
		r.Damage = &DamageError{l.path, r.end, behind}
		if !o.Salvage {
			return r, r.Damage
		}
	}
	r.Cut = end - r.end
	if r.Cut == 0 || o.Salvage {
		return r, nil
	}
	if r.PowerLost {
		if r.SavedTo, err = l.save(f, r.end, r.Cut, o.LostFound); err != nil {
			return r, fmt.Errorf("save the damaged end of the log: %w", err)
		}
	}
	return r, zero(f, r.end, r.Cut)
}

// checkHeader returns a DamageError or ErrVersion if the header h cannot be used, and nil otherwise.
func (l *Log) checkHeader(h *header) error {
	switch {
	case h.magic != magic:
		return &DamageError{Path: l.path}
	case h.order != byteOrder:
		return fmt.Errorf("read log %s: written by a host with another byte order: %w", l.path, ErrVersion)
	case h.version != version && h.version != raised:
		return fmt.Errorf("read log %s: version is %d, this program supports %d and %d: %w", l.path, h.version, version,
			raised, ErrVersion)
	case !h.isIntact():
		return &DamageError{Path: l.path}
	}
	return nil
}

// save copies n bytes at the offset off of a file to a new file in dir, syncs that file and returns its path.
func (l *Log) save(from disk.File, off, n int64, dir string) (path string, err error) {
	if dir == "" {
		dir = filepath.Dir(l.path)
	}
	if err := l.fs.Mkdir(dir, 0o700); err == nil {
		err = l.fs.SyncDir(filepath.Dir(dir))
		if err != nil {
			return "", err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	var f disk.File
	for i := 0; f == nil; i++ {
		path = filepath.Join(dir, fmt.Sprintf("log-tail-%d", off))
		if i > 0 {
			path += fmt.Sprintf("-%d", i)
		}
		f, err = l.fs.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	_, err = io.Copy(io.NewOffsetWriter(f, 0), io.NewSectionReader(from, off, n))
	return path, errors.Join(err, f.Sync(), f.Close(), l.fs.SyncDir(dir))
}

// zero overwrites n bytes at the offset off with zeros, as in a part of the file in which no record was written.
func zero(f disk.File, off, n int64) error {
	zeros := make([]byte, min(n, 1<<20))
	for n > 0 {
		k, err := f.WriteAt(zeros[:min(n, int64(len(zeros)))], off)
		if err != nil {
			return err
		}
		off, n = off+int64(k), n-int64(k)
	}
	return nil
}
