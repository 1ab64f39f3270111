"""The keys of a broker's configuration, and how a store without a broker treats them.

A broker's own file can be used as it is. Keys that mean nothing here are skipped with a warning,
and keys that nobody knows are errors. A few values decide how records are stored, or what is
guaranteed for them: `DEVIATIONS` says what happens to each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rmqstore_spark.errors import OptionError

_log = logging.getLogger(__name__)

# The properties for which these classes of RocketMQ 4.9.8 have setters. A broker reads its file
# with them (`BrokerStartup`, `MixAll.properties2Object`).
_CLASSES: Final = {
    "BrokerConfig": """
        aclEnable adminBrokerThreadPoolNums autoCreateSubscriptionGroup autoCreateTopicEnable
        autoDeleteUnusedStats brokerClusterName brokerFastFailureEnable brokerId brokerIP1
        brokerIP2 brokerName brokerPermission brokerTopicEnable
        clientManagerThreadPoolQueueCapacity clientManageThreadPoolNums clusterTopicEnable
        commercialBaseCount commercialBigCount commercialEnable commercialTimerCount
        commercialTransCount compressedRegister configBlackList consumerFallbehindThreshold
        consumerManagerThreadPoolQueueCapacity consumerManageThreadPoolNums defaultTopicQueueNums
        disableConsumeIfConsumerReadSlowly enableCalcFilterBitMap enableDetailStat
        enablePropertyFilter endTransactionPoolQueueCapacity endTransactionThreadPoolNums
        expectConsumerNumUseFilter fetchNamesrvAddrByAddressServer filterDataCleanTimeSpan
        filterServerNums filterSupportRetry flushConsumerOffsetHistoryInterval
        flushConsumerOffsetInterval forceRegister heartbeatThreadPoolNums
        heartbeatThreadPoolQueueCapacity highSpeedMode isolateLogEnable longPollingEnable
        maxDelayTime maxErrorRateOfBloomFilter messageStorePlugIn msgTraceTopicName namesrvAddr
        notifyConsumerIdsChangedEnable processReplyMessageThreadPoolNums pullMessageThreadPoolNums
        pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putThreadPoolQueueCapacity
        queryMessageThreadPoolNums queryThreadPoolQueueCapacity regionId registerBrokerTimeoutMills
        registerNameServerPeriod rejectTransactionMessage replyThreadPoolQueueCapacity rocketmqHome
        sendMessageThreadPoolNums sendThreadPoolQueueCapacity shortPollingTimeMills slaveReadEnable
        startAcceptSendRequestTimeStamp storeReplyMessageEnable traceOn traceTopicEnable
        transactionCheckInterval transactionCheckMax transactionTimeOut transferMsgByHeap
        waitTimeMillsInHeartbeatQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue
        waitTimeMillsInTransactionQueue
    """,
    "MessageStoreConfig": """
        accessMessageInMemoryMaxRatio bitMapLengthConsumeQueueExt brokerRole checkCRCOnRecover
        cleanFileForciblyEnable cleanResourceInterval commitCommitLogLeastPages
        commitCommitLogThoroughInterval commitIntervalCommitLog debugLockEnable defaultQueryMaxNum
        deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval deleteWhen
        destroyMapedFileIntervalForcibly diskFallRecorded diskMaxUsedSpaceRatio dLegerGroup
        dLegerPeers dLegerSelfId duplicationEnable enableBatchPush enableConsumeQueueExt
        enableDLegerCommitLog enableLmq enableMultiDispatch enableScheduleAsyncDeliver
        enableScheduleMessageStats fastFailIfNoBufferInStorePool fileReservedTime
        flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed
        flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval flushDelayOffsetInterval
        flushDiskType flushIntervalCommitLog flushIntervalConsumeQueue
        flushLeastPagesWhenWarmMapedFile haHousekeepingInterval haListenPort haMasterAddress
        haSendHeartbeatInterval haSlaveFallbehindMax haTransferBatchSize mappedFileSizeCommitLog
        mappedFileSizeConsumeQueue mappedFileSizeConsumeQueueExt maxHashSlotNum maxIndexNum
        maxLmqConsumeQueueNum maxMessageSize maxMsgsNumBatch maxTransferBytesOnMessageInDisk
        maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk
        maxTransferCountOnMessageInMemory messageDelayLevel messageIndexEnable messageIndexSafe
        offsetCheckInSlave osPageCacheBusyTimeOutMills preferredLeaderId putMsgIndexHightWater
        readOnlyCommitLogStorePaths redeleteHangedFileInterval scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked slaveTimeout storePathCommitLog
        storePathDLedgerCommitLog storePathRootDir syncFlushTimeout transientStorePoolEnable
        transientStorePoolSize useReentrantLockWhenPutMessage warmMapedFileEnable
    """,
    "NettyClientConfig": """
        channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
        clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
        clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
        clientWorkerThreads connectTimeoutMillis useTLS writeBufferHighWaterMark
        writeBufferLowWaterMark
    """,
    "NettyServerConfig": """
        listenPort serverAsyncSemaphoreValue serverCallbackExecutorThreads
        serverChannelMaxIdleTimeSeconds serverOnewaySemaphoreValue
        serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
        serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads useEpollNativeSelector
        writeBufferHighWaterMark writeBufferLowWaterMark
    """,
}
# Read by `BrokerStartup` itself.
_STARTUP: Final = ("rmqAddressServerDomain", "rmqAddressServerSubGroup")

BROKER_KEYS: Final = frozenset([*" ".join(_CLASSES.values()).split(), *_STARTUP])
"""The keys of a broker's file. Some mean the same to a store without a broker."""

STRAY_KEYS: Final = frozenset(
    [
        "abortFile",
        "checkTransactionMessageEnable",
        "mapedFileSizeCommitLog",
        "mapedFileSizeConsumeQueue",
        "storeCheckpoint",
        "storePathConsumeQueue",
        "storePathIndex",
    ]
)
"""Keys that brokers' files often hold, although a broker of 4.9 does not read them either."""


@dataclass(frozen=True)
class Deviation:
    """Values of a key that a store process does not follow.

    Attributes:
        values: the values, in any case.
        text: what happens instead, in Markdown.
        is_refused: whether the store cannot be opened with them.
    """

    values: tuple[str, ...]
    text: str
    is_refused: bool = False


DEVIATIONS: Final = {
    "enableConsumeQueueExt": Deviation(
        ("true",), "queues get plain entries, without units in `consumequeue_ext`"
    ),
    "enableMultiDispatch": Deviation(
        ("true",),
        "messages would get into one queue only, not into those that their property "
        "INNER_MULTI_DISPATCH names. If no message has that property, set the key to `false`",
        is_refused=True,
    ),
    "transientStorePoolEnable": Deviation(
        ("true",),
        "ignored: a put is in the page cache before it is acknowledged, so a kill does not lose it",
    ),
}
"""Settings of a broker's file that a store process follows differently, or not at all."""


def check_deviation(name: str, given: str, source: str) -> bool:
    """Check a broker's setting for a deviation: warn of it, or refuse it.

    Returns:
        Whether a warning was logged.

    Raises:
        OptionError: a store with this setting cannot be written.
    """
    found = DEVIATIONS.get(name)
    value = given.strip()
    if found is None or value.lower() not in [word.lower() for word in found.values]:
        return False
    text = f"{source}{name}={value}: {found.text}.".replace("`", "")
    if found.is_refused:
        raise OptionError(text)
    _log.warning("%s", text)
    return True


def tell_passed_over(names: Iterable[str], source: str) -> None:
    """Warn of keys that have no effect: one line for a broker's keys, one for all others."""
    stray = sorted(name for name in names if name in STRAY_KEYS)
    broker = sorted(name for name in names if name not in STRAY_KEYS)
    if broker:
        _log.warning("%signored keys that only a broker uses: %s.", source, ", ".join(broker))
    if stray:
        _log.warning(
            "%signored keys that a broker does not know either: %s.", source, ", ".join(stray)
        )
