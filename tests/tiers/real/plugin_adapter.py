"""L2 adapters of a third party, for LMCache's type `plugin`: one that is right, and ones that real ones could be."""

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform import create_event_notifier


class Right(L2AdapterInterface):
    """Keeps bytes in a dictionary; every task ends at once."""

    def __init__(self, params, l1_memory_desc=None):
        super().__init__()
        self.objects = {}
        self.number = 0
        self.stored, self.found, self.loaded = {}, {}, {}
        self.store_event, self.lookup_event, self.load_event = (create_event_notifier() for _ in range(3))

    def get_store_event_fd(self):
        return self.store_event.fileno()

    def get_lookup_and_lock_event_fd(self):
        return self.lookup_event.fileno()

    def get_load_event_fd(self):
        return self.load_event.fileno()

    def submit_store_task(self, keys, objects):
        self.number += 1
        moved = 0
        for key, obj in zip(keys, objects, strict=True):
            self.objects[key] = bytes(obj.byte_array)
            moved += len(self.objects[key])
        self.stored[self.number] = L2StoreResult(True, moved)
        self.store_event.notify()
        return self.number

    def pop_completed_store_tasks(self):
        done, self.stored = self.stored, {}
        return done

    def _there(self, keys):
        bitmap = Bitmap(len(keys))
        for index, key in enumerate(keys):
            if key in self.objects:
                bitmap.set(index)
        return bitmap

    def submit_lookup_and_lock_task(self, keys, group_layout_descs):
        self.number += 1
        self.found[self.number] = self._there(keys)
        self.lookup_event.notify()
        return self.number

    def query_lookup_and_lock_result(self, task_id):
        return self.found.pop(task_id, None)

    def submit_unlock(self, keys):
        pass

    def submit_load_task(self, keys, objects):
        self.number += 1
        bitmap = self._there(keys)
        for key, obj in zip(keys, objects, strict=True):
            if key in self.objects:
                self.read(key, obj)
        self.loaded[self.number] = bitmap
        self.load_event.notify()
        return self.number

    def read(self, key, obj):
        memoryview(obj.raw_data.numpy())[:] = self.objects[key]

    def query_load_result(self, task_id):
        return self.loaded.pop(task_id, None)

    def delete(self, keys):
        for key in keys:
            self.objects.pop(key, None)

    def close(self):
        for event in (self.store_event, self.lookup_event, self.load_event):
            event.close()


class LoadsNothing(Right):
    def read(self, key, obj):
        pass


class FailsStores(Right):
    def submit_store_task(self, keys, objects):
        self.number += 1
        self.stored[self.number] = L2StoreResult(False, 0)
        self.store_event.notify()
        return self.number


class NeverEndsLoads(Right):
    def submit_load_task(self, keys, objects):
        self.number += 1
        return self.number
