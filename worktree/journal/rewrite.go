package journal

import (
	"errors"
	"os"
	"unsafe"
)

// rewrite writes what is worth keeping to a new file, which takes the place of the old: of each path the last record,
// and of these the youngest that take no more than half of the room.
func (j *Journal) rewrite() error {
	var all []record
	latest := make(map[string]uint64)
	j.log.each(0, func(r record) bool {
		all = append(all, r)
		latest[string(r.path)] = r.number
		return true
	})
	keep, size := len(all), headerSize
	for ; keep > 0; keep-- {
		r := all[keep-1]
		if latest[string(r.path)] != r.number {
			continue
		}
		if size += recordSize(len(r.path)); size > j.room/2 {
			break
		}
	}
	dropped := j.dropped
	if keep > 0 {
		dropped = max(dropped, all[keep-1].number)
	}
	name := j.path + ".new"
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	var next log
	if err := next.open(f, j.room, false); err != nil {
		return errors.Join(err, f.Close())
	}
	// The file is whole before it has the name.
	err = next.grow(min(size+8, j.room))
	if err == nil {
		h := next.header()
		*h = header{magic: magic, version: version, epoch: j.epoch, dropped: dropped, killed: j.killed, boot: j.boot}
		next.end = headerSize
		for _, r := range all[keep:] {
			if latest[string(r.path)] == r.number {
				next.write(r.number, unsafe.String(&r.path[0], len(r.path)))
			}
		}
		err = os.Rename(name, j.path)
	}
	if err != nil {
		return errors.Join(err, next.unmap(), os.Remove(name))
	}
	old := j.log
	j.log, j.dropped = next, dropped
	_ = old.unmap() // nobody needs it any more
	return nil
}
